"""vLLM's graphs in pieces: what is driven of them, release by release, and faults planted there."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from paritybit.harness.engines.faults import Verdict
from paritybit.subjects.engines.shared.missing import PartMissingError, RunnerLackingError
from paritybit.subjects.engines.shared.padded import PaddedTokens
from paritybit.subjects.engines.vllm.pieces import BreakableRunner

from properties.engines.mutated_vllm_pieces import OF_BOTH, OF_ONE
from properties.support.releases import package_of, told_of

SCRIPT = "properties.engines.mutated_vllm_pieces"
NEWEST = "0.33.0"
RUNNERS = tuple(OF_ONE)

SEEN_BY = {
    "leave_slots": {"live_inputs", "write_frame", "kv_parity"},
    "unmark_padding": {"live_inputs"},
    "leave_ids": {"live_inputs", "logits_parity", "hermetic_replay"},
    "dispatch_too_few": {"captured_path"},
    "keep_old_weights": {"logits_parity", "kv_parity", "hermetic_replay"},
    "narrow_positions": {"index_contract"},
    "read_a_copy_of_attention": {"logits_parity", "kv_parity", "hermetic_replay"},
    "attend_in_the_graph": {"captured_path"},
}
"""The properties that must see each fault."""

DRIVEN = {
    "0.17.0": ("piecewise",),
    "0.20.2": ("piecewise",),
    "0.23.0": RUNNERS,
    "0.24.0": RUNNERS,
    "0.28.0": RUNNERS,
}
"""Which kinds of graphs releases have, besides the newest."""

BROKE = {"0.17.0": ("piecewise", "slot_tail"), "0.23.0": ("breakable", "attention_captured")}
"""The releases in which one of them is wrong, and the fault class that it is."""


@cache
def newest(runner: str) -> Any:
    """Return what the newest release shows, as it is and with each fault planted."""
    return told_of(SCRIPT, package_of(NEWEST, "vllm"), runner, "none", *OF_BOTH, *OF_ONE[runner])


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_newest_release_is_clean(runner: str) -> None:
    shown = newest(runner)["none"]
    assert shown["violated"] == {}
    assert set(shown["faults"].values()) == {Verdict.ABSENT}
    assert shown["replays"] > shown["padded"] > 2


@pytest.mark.parametrize(
    ("runner", "mutation"),
    [(runner, mutation) for runner in RUNNERS for mutation in (*OF_BOTH, *OF_ONE[runner])],
)
def test_a_fault_that_is_planted_in_the_newest_release_is_caught(
    runner: str, mutation: str
) -> None:
    assert SEEN_BY[mutation] <= set(newest(runner)[mutation]["violated"])


@pytest.mark.parametrize("version", DRIVEN)
def test_earlier_releases_replay_in_pieces_or_lack_a_kind_of_them(version: str) -> None:
    package = package_of(version, "vllm")
    for runner in RUNNERS:
        shown = told_of(SCRIPT, package, runner, "none")["none"]
        if runner not in DRIVEN[version]:
            assert "has no breakable graphs" in shown["lacking"]
            continue
        present = {name for name, told in shown["faults"].items() if told == Verdict.PRESENT}
        assert present == {name for kind, name in [BROKE.get(version, ("", ""))] if kind == runner}
        assert bool(shown["violated"]) is bool(present)
        assert shown["replays"]


def test_attention_that_is_captured_is_told_by_its_name() -> None:
    assert newest("breakable")["attend_in_the_graph"]["faults"]["attention_captured"] == (
        Verdict.PRESENT
    )


def test_graphs_that_break_are_lacking_undecided_or_captured_anew() -> None:
    made: Any = BreakableRunner.__new__(BreakableRunner)
    made.runner = SimpleNamespace(cudagraph_manager=SimpleNamespace())
    made.engine = SimpleNamespace(module=lambda name: torch.nn.functional)
    with pytest.raises(RunnerLackingError, match="has no breakable graphs"):
        made.renew()
    made.engine = SimpleNamespace(module=lambda name: BreakableRunner)
    with pytest.raises(PartMissingError, match="has no use_breakable_cg"):
        made.renew()
    held = made.runner.cudagraph_manager
    held.use_breakable_cg, held.breakable_cg_runner = True, "captured before"
    made.renew()
    assert held.breakable_cg_runner is None


def test_padding_in_tokens_lies_between_the_live_ones_and_the_end_of_the_bucket() -> None:
    held = PaddedTokens(torch.arange(10), "input_ids")
    batch: Any = SimpleNamespace(live_tokens=5, live_requests=2)
    assert held.tail(batch, 8).tolist() == [5, 6, 7]
