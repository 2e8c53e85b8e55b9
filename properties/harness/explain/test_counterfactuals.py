"""What is blamed is what, changed back, makes the violated property hold; and nothing else is."""

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from paritybit.harness.checks.explanation import explanation, observe
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.step_properties.live_inputs import wrong_inputs
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.explain.counterfactuals.judge import Judge, holds
from paritybit.harness.explain.counterfactuals.made import Wanted, made_at
from paritybit.harness.explain.counterfactuals.objects import KEPT_ELEMENTS, Kept
from paritybit.harness.explain.facts import Explanation
from paritybit.harness.explain.recorded import RecordedForward, Run
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Resume,
    Retract,
    Schedule,
    Step,
    Verify,
)
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import SPECULATION
from paritybit.reference.model import Output
from paritybit.subjects import key_lists
from paritybit.subjects.parts import Part
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.decode import DecodeRunner
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from properties.support.harness.faults import row_of_a_retracted_request_freed
from properties.support.harness.planting import SCHEDULE

SIZES: dict[str, Any] = {
    "scheme": LocationScheme.PRESET,
    "full_slots": 56,
    "swa_slots": 48,
    "rows": 4,
    "buckets": (2, 4),
    "token_buckets": (4, 12),
}

Plant = Callable[[pytest.MonkeyPatch], None]

THREE_DECODES = Schedule(
    (Admit(5, 99), Admit(3, 99), Admit(4, 99), Decode((0, 1)), Decode((1, 2)), Decode((2, 0))),
    seed=3,
)
"""Batches of one size, of other requests each."""


class EarlierPositions(GraphRunner):
    """Reads positions one too low, though the static input holds the right ones."""

    def view(self, name: str, bucket: int) -> Tensor:
        """Return another tensor."""
        found = super().view(name, bucket)
        return (found - 1).clamp(min=0) if name == "positions" else found


class ShorterWindow(GraphRunner):
    """Lists one key fewer than the window has."""

    @property
    def window(self) -> int:
        """Return one fewer."""
        return super().window - 1


class OtherRows(DecodeRunner):
    """Gives the rows of its output in another order, though all ops gave the right ones."""

    def forward(self, bucket: int) -> Output:
        """Return them the other way round."""
        return {name: values.flip(0) for name, values in super().forward(bucket).items()}


def shorter_mask_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the rows of a tree's mask to be one bit shorter: attention and parents go by them."""
    tree_lists = key_lists.tree_lists

    def changed(*given: Any) -> dict[str, Tensor]:
        found = tree_lists(*given)
        node = torch.arange(len(found["mask_indptr"])) % SPECULATION.draft_tokens
        return {**found, "mask_indptr": found["mask_indptr"] - node}

    monkeypatch.setattr(key_lists, "tree_lists", changed)


def kept_tokens(monkeypatch: pytest.MonkeyPatch, healed: Sequence[Any] = ()) -> None:
    """Copy the tokens of a batch only if it has more or fewer than the last one.

    Once `healed` has items, always copy them.
    """
    live_values = DecodeRunner.live_values

    def changed(self: Any, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        found = live_values(self, batch, bucket)
        if not healed and batch is not None and getattr(self, "count", 0) == batch.live_requests:
            del found["input_ids"]
        self.count = 0 if batch is None else batch.live_requests
        return found

    monkeypatch.setattr(DecodeRunner, "live_values", changed)


def built_with(part: type) -> Plant:
    """Return what builds engines with a class of runner."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = TrialConfig("decode", device="cpu", **SIZES).subject()
        wrong = replace(right, parts=right.parts.with_before({Part.RUNNER: part}))
        monkeypatch.setattr(TrialConfig, "subject", lambda _: wrong)

    return plant


FAULTS: dict[str, Plant] = {
    "positions": built_with(EarlierPositions),
    "window": built_with(ShorterWindow),
    "state": kept_tokens,
    "rows": built_with(OtherRows),
}

VERIFIED = Schedule((Admit(5, 99), Admit(3, 99), Verify((0, 1), 0)), seed=3)


def broken(fault: str, monkeypatch: pytest.MonkeyPatch, *, overlap: bool = False) -> Lockstep:
    """Return a lockstep of engines with a fault."""
    FAULTS[fault](monkeypatch)
    trial = TrialConfig("decode", device="cpu", overlap=overlap, **SIZES)
    return Lockstep(trial, PROPERTIES, records_ops=True)


def cause_of(fault: str, property_id: str, monkeypatch: pytest.MonkeyPatch) -> Explanation:
    """Return why a property is violated by a fault."""
    lockstep = broken(fault, monkeypatch)
    outcome, timeline = observe(lockstep, THREE_DECODES)
    assert property_id in outcome.violated
    found = explanation(lockstep, THREE_DECODES, outcome, timeline, property_id)
    assert found is not None
    return found


def test_python_state_is_named_by_its_path_from_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cause_of("state", "kv_parity", monkeypatch)
    state = found.cause.state
    assert state is not None
    assert (found.cause.blame, state.path) == (
        "Python state",
        "engine.engine.runners[DECODE].count",
    )
    assert "nothing else changed" in " ".join(found.proof)


def test_nothing_is_blamed_if_the_run_without_a_change_has_come_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What no run restores then decides, and any change would seem to be the cause."""
    healed: list[bool] = []
    monkeypatch.setitem(FAULTS, "state", partial(kept_tokens, healed=healed))

    def heal(recorded: RecordedForward, judge: Judge, run: Run) -> bool:
        healed.append(True)
        return holds(recorded, judge, run)

    monkeypatch.setattr("paritybit.harness.explain.counterfactuals.search.holds", heal)
    assert cause_of("state", "kv_parity", monkeypatch).cause.blame == "not known"


def test_undeclared_state_alone_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cause_of("state", "declared_state", monkeypatch)
    assert found.cause.state is not None
    assert found.cause.state.path == "engine.engine.runners[DECODE].count"


def test_an_input_that_holds_what_its_contract_says_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another value in it changes the outcome, and yet it is right."""
    found = cause_of("positions", "logits_parity", monkeypatch)
    given = found.cause.given
    assert given is not None
    assert (found.cause.blame, given.what) == ("what an op is given", "positions of rotary")
    assert given.left_by is None
    assert found.cause.index is None


def test_an_output_is_blamed_where_all_ops_gave_what_they_ought_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = cause_of("rows", "logits_parity", monkeypatch)
    given, made = found.cause.given, found.cause.made
    assert given is not None
    assert given.what == "logits of the forward"
    assert made[0].what == "made in GraphRunner.run_once"


def test_a_value_that_several_ops_share_is_blamed_where_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorter_mask_rows(monkeypatch)
    trial = TrialConfig("target_verify", device="cpu", **SIZES)
    lockstep = Lockstep(trial, PROPERTIES, records_ops=True)
    outcome, timeline = observe(lockstep, VERIFIED)
    found = explanation(lockstep, VERIFIED, outcome, timeline, "logits_parity")
    assert found is not None
    cause = found.cause
    assert cause.given is not None
    assert cause.given.what == "mask_start of attention"
    assert cause.made[0].what == "made in verify_lists"


def test_what_a_trial_puts_right_is_given_back_after_it() -> None:
    """It may be the batch's own, which outlives a run."""
    kept = torch.tensor([4, 5, 6, 7])
    runs: list[list[int]] = []

    def again(seen: Any) -> Any:
        held = kept  # noqa: F841 - what the frame holds is looked at
        seen(sys._getframe(), 1, None)
        runs.append(kept.tolist())

    wanted = Wanted(torch.tensor([4, 5]), torch.tensor([5, 4]), others=((kept[2:], kept[2:] + 1),))
    assert made_at(wanted, again, lambda _: False) == ()
    assert runs == [[4, 5, 6, 7], [5, 4, 7, 8]]
    assert kept.tolist() == [4, 5, 6, 7]


def test_overlap_is_not_blamed_for_what_is_wrong_in_order_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lockstep = broken("window", monkeypatch, overlap=True)
    outcome, timeline = observe(lockstep, SCHEDULE)
    found = explanation(lockstep, SCHEDULE, outcome, timeline, None)
    assert found is not None
    assert found.cause.blame != "missing wait"


TWICE_GIVEN = Schedule(
    (
        *(Admit(4, 9), Decode((0,)), Retract(0), Resume(0), Admit(3, 9), Admit(5, 9)),
        *(Decode((1, 0)), Decode((1, 0)), Decode((1, 0))),
    ),
    seed=1,
)
"""A row of tokens has two owners if a request that is retracted gives it away."""


def test_no_wait_is_blamed_for_what_shows_elsewhere_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order the worlds stay alike, and the row has two owners there too."""
    lockstep = Lockstep(TrialConfig("decode", overlap=True, **SIZES))
    row_of_a_retracted_request_freed(lockstep, "decode", monkeypatch)
    outcome, timeline = observe(lockstep, TWICE_GIVEN)
    assert "logits_parity" in outcome.violated
    found = explanation(lockstep, TWICE_GIVEN, outcome, timeline, "logits_parity")
    assert found is not None
    assert found.cause.blame == "slot bookkeeping"


MANY_STEPS = Schedule(
    (
        *(Admit(4, 99), Admit(8, 3), Admit(5, 99), Decode((0, 1)), Decode((1, 2, 0))),
        *(Decode((2,)), Decode((0, 1))),
    ),
    seed=1,
)
"""Batches of every size, of which one request ends before the others."""


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_is_violated_the_explainer_ends_without_an_error(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each property that a schedule violates is explained, or is left without an explanation."""
    lockstep = broken(fault, monkeypatch)
    outcome, timeline = observe(lockstep, MANY_STEPS)
    assert outcome.violated
    for target in sorted(outcome.violated):
        explanation(lockstep, MANY_STEPS, outcome, timeline, target)


def test_a_clean_step_has_no_wrong_input() -> None:
    lockstep = Lockstep(TrialConfig("decode", device="cpu", **SIZES))
    seen = []

    def see(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        if observation is not None:
            seen.append(wrong_inputs(observation))

    assert not lockstep.play(SCHEDULE, see).violations
    assert seen and not any(seen)


def small_tensors(held: Sequence[Any]) -> list[Tensor]:
    """Return the small tensors among objects."""
    found = [one.detach() for one in held if isinstance(one, Tensor)]
    return [tensor for tensor in found if 0 < tensor.numel() < KEPT_ELEMENTS]


def test_objects_are_brought_back_whatever_was_done_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.inference_mode():
        pair = Lockstep(TrialConfig("decode", device="cpu", **SIZES)).pair
        engine = pair.captures.engines[0]
        runner = next(iter(engine.runners.values()))
        array, variable = np.zeros(3, dtype=np.int64), ContextVar("last", default=0)
        drawn = torch.Generator()
        variable.set(1)
        runner.beside = [array, variable, drawn]  # type: ignore[attr-defined]
        first = drawn.get_state()
        captured = Kept(engine)
        runner.further = [1, 2]  # type: ignore[attr-defined]
        runner.buckets = (*runner.buckets, 99)
        changed = {attribute.key: attribute for attribute in captured.changed_by(Kept(engine))}
        assert changed.keys() == {"further", "buckets"}
        captured.put_back(changed["further"])
        assert not hasattr(runner, "further")
        buffers, held = runner.inputs.buffers, captured.objects
        names, empty = list(buffers), [one for one in held if isinstance(one, list) and not one]
        buffers.clear()
        for filled in empty:
            filled.append(1)
        for tensor in small_tensors(held):
            tensor.fill_(1)
        array += 1
        variable.set(2)
        torch.rand(1, generator=drawn)
        owner = next(one for one in type(runner).__mro__ if "captures" in vars(one))
        monkeypatch.setattr(owner, "captures", "another value")
        captured.restore()
        engine.reset()  # Static buffers are restored apart.
        assert runner.captures is True
        assert (array.tolist(), variable.get()) == ([0, 0, 0], 1)
        assert torch.equal(drawn.get_state(), first)
        assert list(buffers) == names
        assert empty and not any(empty)
        assert 99 not in runner.buckets
        assert not list(captured.changed_by(Kept(engine)))
