"""Steps that overlap: the same bits as in order, and each wait is needed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from paritybit.harness.campaigns.hunt import HuntResult, draw
from paritybit.harness.campaigns.regress import (
    OVERLAPPING,
    RunConfig,
    all_hunts,
    clean_tasks,
)
from paritybit.harness.campaigns.scenes import handed_over
from paritybit.harness.campaigns.task import Task, judge_task
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES
from paritybit.harness.explain.reach import Reaching
from paritybit.harness.explain.report import explanation, observe
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.overlapped import FORWARDS_LAG, TURN
from paritybit.harness.lockstep.pair import Pair, subject_alone
from paritybit.harness.records.schema import Status
from paritybit.harness.schedules.coverage import FREED_IN_FLIGHT, HANDED_OVER_IN_FLIGHT, OVERLAPPED
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Evict,
    Finish,
    Idle,
    Schedule,
    Step,
    Verify,
)
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.overlap import Overlap
from paritybit.subjects.parts import Part
from paritybit.subjects.streams import STALLS, LateEvent, LateStreams, Wait
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from properties.support.harness.planting import WITHOUT_REPLAYS

RACES = [name for name, bug in BUGS.items() if bug.overlap]

SMALL = TrialConfig(buckets=(2,), token_buckets=(12,))

# On CUDA no prefill lags: the host asks the device in its course.
LEAVES_IN_FLIGHT = Schedule((Admit(2, 2), Decode((0,)), Finish(0)))
STAGED_IN_FLIGHT = Schedule((Admit(2, 2), Decode((0,)), Admit(3, 3)))
EVICTED_IN_FLIGHT = Schedule((Admit(40, 40), Decode((0,)), Evict(0)))

SHOWN_BY = {
    "barrier_before_launch": LEAVES_IN_FLIGHT,
    "freed_row_rewritten": LEAVES_IN_FLIGHT,
    "evicted_in_flight": EVICTED_IN_FLIGHT,
    "pinned_slots_reused": STAGED_IN_FLIGHT,
}
"""A short schedule that shows each race."""

SEEN_BY = dict.fromkeys(SHOWN_BY, "logits_parity") | {"pinned_slots_reused": "kv_parity"}


class UnawaitedTables(Overlap):
    """A forward reads the tables without a wait for what is written there."""

    def wait_for_tables(self) -> None:
        """Wait for nothing."""


class DoneBeforeSampling(Overlap):
    """A forward is called done before its tokens are sampled."""

    def finish(self, follow: Callable[[], None]) -> None:
        """Record the event first."""
        self.in_flight = self.streams.forward.record()
        self.streams.forward.run(follow)


class Whole(Overlap):
    """Every wait is there."""


def played(pair: Pair, schedule: Schedule) -> list[Tensor]:
    """Return all that playing a schedule gave and left in the graph world."""
    found: list[Tensor] = []
    with torch.inference_mode():
        pair.reset(schedule.seed)
        for place, step, upcoming in schedule.ahead():
            seen = pair.step(step, place, upcoming=upcoming)
            if seen is not None and seen.graph.output is not None:
                found += [values.clone() for values in seen.graph.output.values()]
        return [*found, pair.graph.observed_tokens.clone(), pair.graph_pools.storage.clone()]


@pytest.mark.parametrize("runner", ["decode", "breakable"])
def test_the_same_bits_come_out_whether_steps_overlap_or_not(runner: str, device: str) -> None:
    """Outputs, tokens and all KV of the graph world, over drawn schedules."""
    trial = replace(SMALL, runner=runner, device=device, page_size=4)
    in_order, overlapped = (
        Pair(one, engines=subject_alone) for one in (trial, replace(trial, overlap=True))
    )
    counted = 0

    def compare(schedule: Schedule) -> None:
        nonlocal counted
        left, right = played(in_order, schedule), played(overlapped, schedule)
        assert len(left) == len(right)
        assert all(torch.equal(one, other) for one, other in zip(left, right, strict=True))
        counted += overlapped.graph.events[OVERLAPPED]

    draw(trial, compare, 3, 3)
    assert counted > 0


def test_a_clean_build_violates_nothing_where_steps_overlap(device: str) -> None:
    """With every property on, and slots freed and evicted while a forward is in flight."""
    lockstep = Lockstep(replace(SMALL, device=device, overlap=True), PROPERTIES)
    steps: list[Step] = [Admit(40, 40), Admit(3, 3), Decode((0, 1)), Evict(0), Decode((0, 1))]
    steps += [Finish(0), Admit(9, 9), Idle(0), Decode((0, 1)), Verify((0,), 1), Decode((0, 1))]
    for schedule in dict.fromkeys(SHOWN_BY.values()):
        assert lockstep.play(schedule).violations == ()
    outcome = lockstep.play(Schedule((*steps, *steps)))
    assert (outcome.violations, outcome.error) == ((), None)
    assert outcome.events[OVERLAPPED] > len(steps) / 2
    assert outcome.events[FREED_IN_FLIGHT] > 0


def test_a_step_that_frees_nothing_is_not_counted_as_a_free(device: str) -> None:
    """The window of a short request covers all of its tokens, so an eviction frees no page."""
    lockstep = Lockstep(replace(SMALL, device=device, overlap=True))
    steps: list[Step] = [Admit(3, 3), Decode((0,)), Evict(0), Decode((0,))]
    outcome = lockstep.play(Schedule(tuple(steps)))
    assert outcome.events[OVERLAPPED] > 0
    assert outcome.events[FREED_IN_FLIGHT] == 0


@pytest.mark.parametrize("bug", RACES)
def test_a_race_is_found_and_explained_by_the_overlap(bug: str, device: str) -> None:
    trial = replace(SMALL, device=device).with_bug(bug)
    assert trial.overlap
    lockstep, schedule = Lockstep(trial, STEP_PROPERTIES), SHOWN_BY[bug]
    outcome, timeline = observe(lockstep, schedule)
    assert outcome.error is None
    assert SEEN_BY[bug] in outcome.violated
    found = explanation(lockstep, schedule, outcome, timeline, SEEN_BY[bug])
    assert found is not None and found.cause is not None
    assert found.cause.name == "overlapping steps"


def broken(before: type[Overlap], device: str) -> Lockstep:
    """Return a lockstep whose order of device work has other methods."""
    lockstep = Lockstep(replace(SMALL, device=device, overlap=True))
    overlapped = lockstep.pair.overlapped
    assert overlapped is not None
    parts = lockstep.pair.on_trial.parts.with_before({Part.OVERLAP: before})
    order = parts.of(Part.OVERLAP, Overlap)
    overlapped.order_by(order(lockstep.trial.streams(), overlapped.overlap.device))
    return lockstep


def test_a_forward_that_does_not_wait_for_its_tables_is_seen(device: str) -> None:
    """Where the schedule's writes lag, which they do for some forwards of each turn."""
    schedule = Schedule((Admit(9, 9), *[Decode((0,))] * TURN))
    outcome = broken(UnawaitedTables, device).play(schedule)
    assert outcome.error is None
    assert "logits_parity" in outcome.violated
    assert min(violation.step for violation in outcome.violations) > FORWARDS_LAG


@pytest.mark.parametrize("before", [Whole, DoneBeforeSampling])
def test_a_row_is_handed_over_while_a_forward_in_flight_has_yet_to_keep_its_token(
    before: type[Overlap], device: str
) -> None:
    """Where nobody waits for that, the next owner's prompt is not what it was."""
    lockstep = broken(before, device)
    outcome = lockstep.play(handed_over(lockstep.trial))
    assert outcome.error is None
    assert outcome.events[HANDED_OVER_IN_FLIGHT] > 0
    assert ("logits_parity" in outcome.violated) is (before is DoneBeforeSampling)


def test_a_verify_is_not_planned_ahead(device: str) -> None:
    """The host has to read the root of its tree first."""
    outcome = Lockstep(replace(SMALL, device=device, overlap=True)).play(
        Schedule((Admit(3, 3), Verify((0,), 1)))
    )
    assert outcome.steps == 2
    assert outcome.events[OVERLAPPED] == 0


class Loading(LateStreams):
    """Emulated streams of a device that does nothing new behind work that is held back."""

    in_order = False

    @contextmanager
    def rehearsal(self) -> Iterator[bool]:
        """Run everything at once."""
        self.in_order = True
        try:
            yield True
        finally:
            self.in_order = False

    def open(self) -> None:
        """Run what is held back."""
        self.run_all()

    def run_all(self) -> None:
        """Run what is there, on both streams."""
        for stream in (self.schedule, self.forward):
            while stream.queue:
                stream.advance()

    @property
    def held_back(self) -> bool:
        """Whether work waits."""
        items = (*self.forward.queue, *self.schedule.queue)
        return not all(isinstance(item, LateEvent | Wait) for item in items)

    def _advance(self) -> None:
        if self.in_order:
            self.run_all()
        else:
            super()._advance()


class Loads(TorchDispatchMode):
    """Notes the ops, by their dtypes, that are used for the first time while work is held back."""

    def __init__(self, streams: Loading) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.streams, self.loaded, self.late = streams, set[str](), list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op."""
        dtypes = [leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        name = f"{func} {dtypes}"
        if name not in self.loaded and self.streams.held_back:
            self.late.append(name)
        self.loaded.add(name)
        return func(*args, **(kwargs or {}))


def test_nothing_is_used_for_the_first_time_behind_work_that_is_held_back() -> None:
    """It was rehearsed, or comes once nothing is held back, as what describes a violation does.

    A driver that loads a kernel waits for the device, and so for gates that are closed.
    """
    lockstep = broken(UnawaitedTables, "cpu")
    lockstep.watch(WITHOUT_REPLAYS)
    overlapped, streams = lockstep.pair.overlapped, Loading()
    assert overlapped is not None
    overlapped.order_by(type(overlapped.overlap)(streams, torch.device("cpu")))
    steps: tuple[Step, ...] = (Admit(2, 2), Finish(0), Admit(9, 9), *[Decode((0,))] * TURN)
    with Loads(streams) as loads:
        outcome = lockstep.play(Schedule(steps))
    assert outcome.error is None
    assert outcome.violations
    assert loads.late == []
    assert not streams.held_back


@pytest.mark.parametrize("bug", RACES)
def test_no_gate_opens_by_itself(bug: str, device: str) -> None:
    """While a race is found, explained and followed."""
    if device == "cpu":
        pytest.skip("there are no gates on a CPU")
    stalled = STALLS.gates
    lockstep, schedule = Lockstep(replace(SMALL, device=device).with_bug(bug)), SHOWN_BY[bug]
    turn: list[Step] = [Admit(2, 2), Decode((0,)), Finish(0)]
    longer = Schedule((*schedule.steps, *turn * TURN))
    for one in (longer, schedule):
        outcome, timeline = observe(lockstep, one)
        assert explanation(lockstep, one, outcome, timeline, None) is not None
    Reaching(lockstep.pair, BUGS[bug]).count([longer])
    assert STALLS.gates == stalled


def test_nothing_overlaps_where_nothing_is_launched() -> None:
    with pytest.raises(ValueError, match="the engine of cpu_graph cannot overlap steps"):
        TrialConfig("cpu_graph", overlap=True)


@pytest.mark.parametrize(("overlapped", "status"), [(0, Status.VACUOUS), (1, Status.GREEN)])
def test_a_trial_of_overlapping_steps_of_which_none_did_is_vacuous(
    overlapped: int, status: Status
) -> None:
    counted = HuntResult(replays=1, padded_replays=1)
    counted.events.update({"held against the oracle": 1, OVERLAPPED: overlapped})
    task = Task(TrialConfig(overlap=True), 0, 1)
    assert judge_task(task, counted, None, 0) is status


def test_steps_overlap_in_a_clean_trial_of_each_engine_that_launches() -> None:
    """And the run must have seen them overlap, whatever a narrowed one plays besides."""
    for hunts, runners in (
        (all_hunts(), ["decode", "frozen_kv_mtp"]),
        (all_hunts(["cpu_graph"]), []),
    ):
        settings = RunConfig("cpu", hunts)
        found = [task for task in clean_tasks(settings) if task.trial.overlap]
        assert [task.trial.runner for task in found] == runners
        assert all(task.examples == OVERLAPPING for task in found)
        assert all(task.first == (handed_over(task.trial),) for task in found)
        for event in (OVERLAPPED, HANDED_OVER_IN_FLIGHT):
            assert (event in settings.required_events) is bool(runners)
