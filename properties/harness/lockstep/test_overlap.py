"""Steps that overlap: the same bits as in order, and each wait is needed."""

from dataclasses import replace

import pytest
import torch
from paritybit.harness.campaigns.search import SearchResult, draw_schedules
from paritybit.harness.campaigns.task import Task, judge
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.checks.table import CHEAP_PROPERTIES
from paritybit.harness.explain.report import explanation, observe
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.overlapped import FORWARDS_LAG, TURN
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.records.schema import Status
from paritybit.harness.schedules.schedule import (
    Admit,
    Decode,
    Evict,
    Finish,
    Schedule,
)
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.overlap import Overlap
from paritybit.subjects.toggles import Parts
from torch import Tensor

RACES = [name for name, bug in BUGS.items() if bug.overlap]

SMALL = TrialConfig(buckets=(2,), token_buckets=(12,))

LEAVES_IN_FLIGHT = Schedule((Admit(2, 2), Decode((0,)), Finish(0)))
STAGED_IN_FLIGHT = Schedule((Admit(2, 2), Decode((0,)), Admit(3, 3)))
EVICTED_IN_FLIGHT = Schedule((Admit(40, 40), Decode((0,)), Evict(0)))

SHOWN_BY = {
    "freed_row_rewritten": LEAVES_IN_FLIGHT,
    "evicted_in_flight": EVICTED_IN_FLIGHT,
    "pinned_slots_reused": STAGED_IN_FLIGHT,
    "done_before_sampling": LEAVES_IN_FLIGHT,
}
"""A short schedule that shows each race."""

SEEN_BY = {bug: BUGS[bug].expected["decode"] for bug in SHOWN_BY}


class UnawaitedTables(Overlap):
    """A forward reads the tables without a wait for what is written there."""

    def wait_for_tables(self) -> None:
        """Wait for nothing."""


def played(pair: Pair, schedule: Schedule) -> list[Tensor]:
    """Return all that playing a schedule gave and left in the graph run."""
    found: list[Tensor] = []
    with torch.inference_mode():
        pair.reset(schedule.seed)
        for place, step, upcoming in schedule.ahead():
            seen = pair.step(step, place, upcoming=upcoming)
            if seen is not None and seen.graph.output is not None:
                found += [values.clone() for values in seen.graph.output.values()]
        return [
            *found,
            pair.graph_scheduler.ownership().tokens.clone(),
            pair.graph_pools.storage.clone(),
        ]


@pytest.mark.parametrize("runner", ["decode", "breakable"])
def test_the_same_bits_come_out_whether_steps_overlap_or_not(runner: str) -> None:
    """Outputs, tokens and all KV of the graph run, over drawn schedules."""
    trial = replace(SMALL, runner=runner, page_size=4)
    in_order, overlapped = (Pair(one, alone=True) for one in (trial, replace(trial, overlap=True)))
    counted = 0

    def compare(schedule: Schedule) -> None:
        nonlocal counted
        left, right = played(in_order, schedule), played(overlapped, schedule)
        assert len(left) == len(right)
        assert all(torch.equal(one, other) for one, other in zip(left, right, strict=True))
        assert overlapped.overlapped is not None
        counted += overlapped.overlapped.planned_ahead

    draw_schedules(trial, compare, 3, 3)
    assert counted > 0


@pytest.mark.parametrize("bug", RACES)
def test_a_race_is_found_and_explained_by_the_overlap(bug: str) -> None:
    trial = SMALL.with_bug(bug)
    assert trial.overlap
    player, schedule = SchedulePlayer(trial, CHEAP_PROPERTIES), SHOWN_BY[bug]
    seen = observe(player, schedule)
    assert seen.outcome.error is None
    assert SEEN_BY[bug] in seen.outcome.violated
    found = explanation(seen, SEEN_BY[bug])
    assert found is not None and found.cause is not None
    assert found.cause.name == "overlapping steps"


def test_a_forward_that_does_not_wait_for_its_tables_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the schedule's writes lag, which they do for some forwards of each turn."""
    right = TrialConfig.subject
    parts = Parts((UnawaitedTables,))
    monkeypatch.setattr(TrialConfig, "subject", lambda trial: replace(right(trial), parts=parts))
    schedule = Schedule((Admit(9, 9), *[Decode((0,))] * TURN))
    outcome = SchedulePlayer(replace(SMALL, overlap=True)).play(schedule)
    assert outcome.error is None
    assert "logits_parity" in outcome.violated
    assert min(violation.step for violation in outcome.violations) > FORWARDS_LAG


@pytest.mark.parametrize(("overlapped", "status"), [(0, Status.VACUOUS), (1, Status.GREEN)])
def test_a_trial_of_overlapping_steps_of_which_none_did_is_vacuous(
    overlapped: int, status: Status
) -> None:
    counted = SearchResult(replays=1, padded_replays=1, compared=1, overlapped=overlapped)
    task = Task(TrialConfig(overlap=True), 0, 1)
    assert judge(task, counted, 0) is status
