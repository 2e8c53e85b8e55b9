"""Steps that overlap: the same bits as in order, and each wait is needed."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.campaigns.hunt import HuntResult, draw
from harness.campaigns.regress import OVERLAPPING, RunConfig, all_hunts, clean_tasks
from harness.campaigns.task import Source, Status, Task, judge_task
from harness.checks import play
from harness.checks.device.launches import asks_kernels
from harness.checks.explanation import explained, observe
from harness.checks.play import Lockstep
from harness.checks.table import PROPERTIES, STEP_PROPERTIES
from harness.lockstep.config import TrialConfig, trial_from_json
from harness.lockstep.overlapped import FORWARDS_LAG, TURN
from harness.lockstep.pair import Pair
from harness.schedules.coverage import FREED_IN_FLIGHT, OVERLAPPED
from harness.schedules.schedule import Admit, Decode, Evict, Finish, Idle, Schedule, Step, Verify
from subjects.bugs.catalogue import BUGS
from subjects.overlap import Overlap
from subjects.parts import Part

RACES = [name for name, bug in BUGS.items() if bug.overlap]

SMALL = TrialConfig(buckets=(2,), token_buckets=(12,))

# On CUDA no prefill lags: the host asks the device in its course.
LEAVES_IN_FLIGHT = Schedule((Admit(2, 2), Decode((0,)), Finish(0)))
STAGED_IN_FLIGHT = Schedule((Admit(2, 2), Decode((0,)), Admit(3, 3)))
EVICTED_IN_FLIGHT = Schedule((Admit(40, 40), Decode((0,)), Evict(0)))

SHOWN_BY = {
    "table_writes_unfenced": LEAVES_IN_FLIGHT,
    "barrier_before_launch": LEAVES_IN_FLIGHT,
    "freed_row_rewritten": LEAVES_IN_FLIGHT,
    "evicted_in_flight": EVICTED_IN_FLIGHT,
    "pinned_tokens_reused": STAGED_IN_FLIGHT,
    "pinned_slots_reused": STAGED_IN_FLIGHT,
    "done_before_reading": LEAVES_IN_FLIGHT,
}
"""A short schedule that shows each race."""

SEEN_BY = dict.fromkeys(SHOWN_BY, "logits_parity") | {"pinned_slots_reused": "kv_parity"}

MENDED_BY = {
    name: "Overlap.stage" if name.startswith("pinned") else "Overlap.write" for name in SHOWN_BY
}
"""The function in which a further wait mends each race."""


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
    lockstep = Lockstep(trial)
    in_order, overlapped = lockstep.pair, Pair(replace(trial, overlap=True))
    counted = 0

    def compare(schedule: Schedule) -> None:
        nonlocal counted
        left, right = played(in_order, schedule), played(overlapped, schedule)
        assert len(left) == len(right)
        assert all(torch.equal(one, other) for one, other in zip(left, right, strict=True))
        counted += overlapped.graph.events[OVERLAPPED]

    draw(lockstep, compare, 3, 5)
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


def test_every_race_has_a_schedule_here() -> None:
    assert sorted(SHOWN_BY) == sorted(RACES)


@pytest.mark.parametrize("bug", RACES)
def test_a_race_is_seen_and_explained_by_the_wait_that_mends_it(bug: str, device: str) -> None:
    """And only where steps overlap."""
    trial = replace(SMALL, device=device).with_bug(bug)
    assert trial.overlap
    lockstep, schedule = Lockstep(trial, STEP_PROPERTIES), SHOWN_BY[bug]
    outcome, timeline = observe(lockstep, schedule)
    assert outcome.error is None
    assert SEEN_BY[bug] in outcome.violated
    found = explained(lockstep, schedule, outcome, timeline, SEEN_BY[bug])
    assert found.explanation is not None
    site = found.explanation.cause.site
    assert site is not None
    assert site.function == MENDED_BY[bug]


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


def test_a_prompt_that_is_overwritten_by_a_token_of_who_had_its_row_is_seen(device: str) -> None:
    outcome = broken(DoneBeforeSampling, device).play(
        Schedule((Admit(2, 2), Finish(0), Admit(9, 9)))
    )
    assert outcome.error is None
    assert {"logits_parity", "token_trajectory"} <= outcome.violated


def test_a_verify_is_not_planned_ahead(device: str) -> None:
    """The host has to read the root of its tree first."""
    outcome = Lockstep(replace(SMALL, device=device, overlap=True)).play(
        Schedule((Admit(3, 3), Verify((0,), 1)))
    )
    assert outcome.steps == 2
    assert outcome.events[OVERLAPPED] == 0


def test_another_step_than_the_one_planned_ahead_is_refused(device: str) -> None:
    pair = Pair(replace(SMALL, device=device, overlap=True))
    with torch.inference_mode():
        pair.reset(0)
        pair.step(Admit(3, 3), upcoming=[Decode((0,))])
        with pytest.raises(RuntimeError, match="was planned ahead"):
            pair.step(Admit(2, 2))


def test_extra_runs_run_before_forwards_that_lag(device: str) -> None:
    """Those need a quiet device: where the tables' writes lag, that would hide a race."""
    pair = Pair(replace(SMALL, device=device, overlap=True))
    ran: list[int] = []
    with torch.inference_mode():
        pair.reset(0)
        for place, step, upcoming in Schedule((Admit(2, 2), *[Decode((0,))] * TURN)).ahead():
            runs = {"seen": lambda _, planned: ran.append(planned.forwards)}
            pair.step(step, place, runs, upcoming=upcoming)
    assert ran == [*range(FORWARDS_LAG), TURN]


def test_a_rehearsal_judges_by_kernels_and_by_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What either uses for the first time is loaded then: a driver waits for closed gates."""
    lockstep, by_kernels = Lockstep(replace(SMALL, device="cpu", overlap=True)), list[bool]()
    assert lockstep.pair.overlapped is not None
    streams = lockstep.pair.overlapped.overlap.streams
    monkeypatch.setattr(streams, "rehearsal", lambda: nullcontext(True))

    def judged(*_: object) -> tuple[()]:
        by_kernels.append(asks_kernels(torch.device("cuda")))
        return ()

    monkeypatch.setattr(play, "judge", judged)
    assert lockstep.play(Schedule((Admit(2, 2), Decode((0,))))).steps == 2
    assert by_kernels == [True, False] * 2 + [True] * 2


def test_a_case_says_whether_steps_overlap_and_an_older_one_that_they_do_not(device: str) -> None:
    for trial in (TrialConfig(device=device), TrialConfig(device=device, overlap=True)):
        data = json.loads(json.dumps(trial.to_json()))
        assert trial_from_json(data) == trial
    older = {key: value for key, value in data.items() if key != "overlap"}
    assert trial_from_json(older) == TrialConfig(device=device)
    with pytest.raises(ValueError, match="overlap of a trial cannot be 1"):
        trial_from_json({**older, "overlap": 1})


def test_nothing_overlaps_where_nothing_is_launched() -> None:
    with pytest.raises(ValueError, match="nothing overlaps in the engine of cpu_graph"):
        TrialConfig("cpu_graph", overlap=True)


@pytest.mark.parametrize(("overlapped", "status"), [(0, Status.VACUOUS), (1, Status.GREEN)])
def test_a_trial_of_overlapping_steps_of_which_none_did_is_vacuous(
    overlapped: int, status: Status
) -> None:
    counted = HuntResult(replays=1, padded_replays=1)
    counted.events.update({"held against the oracle": 1, OVERLAPPED: overlapped})
    task = Task(TrialConfig(overlap=True), Source.GENERATED, 0, 1)
    assert judge_task(task, counted, None, 0) is status


def test_steps_overlap_in_a_clean_trial_of_each_engine_that_launches() -> None:
    """And the run must have seen them overlap."""
    for hunts, runners in (
        (all_hunts(), ["decode", "frozen_kv_mtp"]),
        (all_hunts(["cpu_graph"]), []),
    ):
        settings = RunConfig("cpu", hunts)
        found = [task for task in clean_tasks(settings) if task.trial.overlap]
        assert [task.trial.runner for task in found] == runners
        assert all(task.examples == OVERLAPPING for task in found)
        assert (OVERLAPPED in settings.required_events) is bool(runners)
