"""Which static inputs of an engine no property judges by themselves is said by name."""

from types import SimpleNamespace
from typing import Any

import torch
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.engines.faults import Evidence
from paritybit.harness.engines.legs import OURS, Leg
from paritybit.harness.engines.padding import Entry, PaddingLedger
from paritybit.harness.engines.statics import Judged, listed
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.schedule import Admit, Decode, Schedule
from paritybit.subjects.engines.shared.padded import DeclaredPadding

WHY = (
    "The expected values are not known, so an error there shows only in what a replay reads,"
    " writes or returns"
)


def observed(*static: str, given: tuple[str, ...] = (), padding: tuple[str, ...] = ()) -> Any:
    """Return an observation of a replay of some static inputs, and of which something is known."""
    held = torch.zeros(2)
    replay = SimpleNamespace(
        given=dict.fromkeys(given, held), padding=dict.fromkeys(padding, (1, held))
    )
    return SimpleNamespace(static=dict.fromkeys(static, held), replay=replay)


def test_a_static_input_of_which_nothing_is_known_is_named() -> None:
    judged = Judged()
    judged.see(SimpleNamespace(static={"eager": torch.zeros(2)}, replay=None))  # type: ignore[arg-type]
    assert judged.notes([]) == []
    judged.see(observed("a", "b", "c", given=("a", "b"), padding=("b",)))
    judged.see(observed("a", "d", given=("a",)))
    assert judged.notes(["a", "d"]) == [
        f"not checked directly: c. {WHY}",
        f"not checked directly: the live part of d. {WHY}",
    ]
    judged.see(observed("c", "d", given=("c", "d"), padding=("c", "d")))
    assert judged.notes([]) == [f"not checked directly: the padding of a. {WHY}"]


def test_of_a_holder_of_many_static_inputs_none_is_named() -> None:
    names = {"b", "attention.0.a", "attention.0.b", "attention.a", "attention.b", "attention.c"}
    assert listed(names) == "b, 3 of attention, attention.0.a, attention.0.b"


def test_what_a_leg_played_and_disturbed_says_which_inputs_it_judged() -> None:
    """Our own engine stands for one that brings nothing: all of its static inputs are named."""
    lockstep = Lockstep(TrialConfig(buckets=(2,), token_buckets=(4,)))
    leg = Leg(lockstep, Evidence("decode", {}), OURS)
    assert leg.notes() == []
    leg.play(Schedule((Admit(1, 16), Decode((0,)))))
    assert leg.result.replays
    (neither,) = leg.notes()
    assert "input_ids" in neither
    ledger = object.__new__(PaddingLedger)
    ledger.entries = {"input_ids": Entry("int64", disturbed=1), "positions": Entry("int64")}
    leg.ledger = ledger
    neither, live = leg.notes()
    assert "input_ids" not in neither and "positions" in neither
    assert "the live part of input_ids. " in live


def test_padding_that_is_declared_of_an_input_outside_the_table_is_not_judged() -> None:
    ledger = object.__new__(PaddingLedger)
    ledger.entries = {"known": Entry("int64")}
    declared = dict.fromkeys(("known", "unheard_of"), DeclaredPadding("zero", "reset", 0))
    ledger.subject = SimpleNamespace(declared_padding=lambda: declared)
    words = [(policy["observed"], policy["holds"]) for policy in ledger.policies()]
    assert words == [("not tried", "not tried"), ("not judged", "not judged")]
