"""What a release's own verify of draft trees shows, as it is and wronged."""

from functools import cache
from typing import Any

import pytest

from properties.support.releases import told_by

MENDED, NEWEST = "0.5.12", "0.5.23"

WRONGED = {
    "leave_rows": {"hermetic_replay", "read_frame"},
    "leave_locations": {"write_frame", "kv_parity"},
    "lose_a_token": {"logits_parity"},
    "forget_mask": {"logits_parity", "read_frame"},
    "flip_a_bit": {"logits_parity", "read_frame"},
}
"""What wronging a release's populate must violate, at least."""

PLAYED = {
    NEWEST: ("1", ("none", *WRONGED, "elements")),
    MENDED: ("4", ("none", "heal_req_pool_pad")),
}
"""The page size that a release is tried with, and how it is wronged, in one process."""


@cache
def all_shown(version: str) -> Any:
    """Return what one schedule shows of a release that lies here, by what wrongs it."""
    page_size, mutations = PLAYED[version]
    return told_by("properties.engines.mutated_verify", version, page_size, *mutations)


def test_trees_are_verified_by_replays_with_the_reference_s_bits() -> None:
    shown = all_shown(NEWEST)["none"]
    assert shown["violated"] == []
    assert shown["padded"] == 4
    assert shown["replays"] == 6
    assert shown["events"]["held against the oracle"] > 0
    assert shown["events"]["accepted beside the first branch"] > 0


@pytest.mark.parametrize("mutation", WRONGED)
def test_a_verify_that_is_wronged_violates_what_it_must(mutation: str) -> None:
    shown = all_shown(NEWEST)[mutation]
    assert WRONGED[mutation] <= set(shown["violated"])
    assert shown["replays"] > 0


def test_a_graph_reads_every_list_as_it_is_when_it_is_launched() -> None:
    found = all_shown(NEWEST)["elements"]
    assert [name for name, violated in found.items() if "kv_parity" not in violated] == []
    assert "attention.cuda_graph_window_kv_offsets" in found


def test_stale_request_rows_are_all_that_replays_get_wrong_in_the_release_that_kept_them() -> None:
    """Besides, its free unmaps the tokens it is given and not the drafts that share their page."""
    shown = all_shown(MENDED)
    assert shown["none"]["violated"] == ["hermetic_replay", "read_frame", "slot_ownership"]
    assert shown["heal_req_pool_pad"]["violated"] == ["slot_ownership"]
    assert shown["heal_req_pool_pad"]["padded"] == shown["none"]["padded"] == 4


def test_the_padding_of_requests_of_tokens_and_of_the_mask_is_judged_in_its_own_unit() -> None:
    padding = all_shown(NEWEST)["none"]["padding"]
    assert padding["req_pool_indices"] == padding["out_cache_loc"] == "reset"
    assert padding["attention.cuda_graph_swa_out_cache_loc"] == "reset"
    assert padding["input_ids"] == "kept, nobody live reads it"
    assert padding["attention.cuda_graph_custom_mask"] == "kept, nobody live reads it"
    older = all_shown(MENDED)["none"]["padding"]
    assert older["out_cache_loc_swa"] == "reset"
    assert older["req_pool_indices"] == "kept, nobody live reads it"


def test_the_policies_that_the_engine_declares_hold_of_a_verify() -> None:
    assert all_shown(NEWEST)["none"]["broken_policies"] == []
