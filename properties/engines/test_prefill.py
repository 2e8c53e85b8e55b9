"""Prefill runners of releases: captured, replayed, and mutated."""

from functools import cache
from typing import Any

import pytest
from paritybit.harness.engines.faults import Verdict

from properties.support.releases import told_by

HARMLESS = ("stale_full_tail", "stale_positions_tail")
"""What leaves the padding of a prefill as it was: attention is handed the live tokens alone."""

HARMFUL = {
    "stale_location": {"kv_parity"},
    "lose_a_token": {"kv_parity", "logits_parity"},
    "too_few_attend": {"kv_parity"},
    "stale_window": {"kv_parity", "logits_parity", "read_frame"},
}
"""What harms a live token, and what is violated then."""

MUTATIONS = {
    ("0.5.11", "piecewise"): ("none",),
    ("0.5.12", "piecewise"): (
        *("none", *HARMLESS, *HARMFUL, "stale_swa_location"),
        *("all_attend", "all_attend_at_stale_locations"),
    ),
    ("0.5.12", "breakable"): ("none",),
    ("0.5.23", "breakable"): ("none", *HARMLESS, *HARMFUL, "all_attend"),
}
"""What is tried of a runner of a release, in one process."""

CLEAN = (("0.5.12", "piecewise"), ("0.5.23", "breakable"))


@cache
def all_shown(version: str, runner: str) -> Any:
    """Return what a runner of a release that lies here shows, by mutation."""
    module = "properties.engines.mutated_prefill"
    return told_by(module, version, runner, *MUTATIONS[version, runner])


def shown(version: str, runner: str, mutation: str = "none") -> Any:
    """Return what a runner of a release that lies here shows, mutated."""
    return all_shown(version, runner)[mutation]


@pytest.mark.parametrize(("version", "runner"), CLEAN)
def test_a_prefill_runner_replays_padded_prefills_in_lockstep_with_the_reference(
    version: str, runner: str
) -> None:
    found = shown(version, runner)
    assert found["violated"] == []
    assert found["replays"] > found["padded"] > 0
    assert {"logits_parity", "kv_parity", "hermetic_replay", "read_frame"}.isdisjoint(
        found["unasked"]
    )


@pytest.mark.parametrize(("version", "runner"), [("0.5.11", "piecewise"), ("0.5.12", "breakable")])
def test_locations_of_another_dtype_are_told_where_they_are_stored(
    version: str, runner: str
) -> None:
    found = shown(version, runner)
    assert "index_contract" in found["violated"]
    assert found["faults"]["swa_int64"] == Verdict.PRESENT


def test_the_release_that_mended_them_hands_over_locations_of_the_pool_s_dtype() -> None:
    assert shown("0.5.12", "piecewise")["faults"]["swa_int64"] == Verdict.ABSENT


@pytest.mark.parametrize(("version", "runner"), CLEAN)
@pytest.mark.parametrize("mutation", HARMFUL)
def test_what_harms_a_live_token_is_violated(version: str, runner: str, mutation: str) -> None:
    assert HARMFUL[mutation] <= set(shown(version, runner, mutation)["violated"])


@pytest.mark.parametrize(("version", "runner"), CLEAN)
@pytest.mark.parametrize(
    ("mutation", "buffer"), [*zip(HARMLESS, ("out_cache_loc", "positions"), strict=True)]
)
def test_a_stale_tail_harms_nobody_and_is_told_from_a_reset_one(
    version: str, runner: str, mutation: str, buffer: str
) -> None:
    stale = shown(version, runner, mutation)
    assert stale["violated"] == []
    assert stale["padding"][buffer] == "kept, nobody live reads it"
    assert shown(version, runner)["padding"][buffer] == "reset"


def test_a_stale_swa_location_is_violated_where_it_is_a_static_input() -> None:
    assert "kv_parity" in shown("0.5.12", "piecewise", "stale_swa_location")["violated"]


def test_padded_tokens_that_attend_write_to_slot_0_unless_their_locations_are_stale() -> None:
    assert shown("0.5.12", "piecewise", "all_attend")["violated"] == []
    stale = shown("0.5.12", "piecewise", "all_attend_at_stale_locations")
    assert "write_frame" in stale["violated"]
    assert stale["padding"]["out_cache_loc"] == "kept, and read"


def test_padded_tokens_fail_in_attention_where_locations_are_planned_for_live_ones() -> None:
    assert "logits_parity" in shown("0.5.23", "breakable", "all_attend")["violated"]
