"""Tasks of a run: clean trials and hunts. How a task runs, and how its result is judged.

A task is a trial and the number of schedules to draw for it. `run_task` does the following:

1. It searches for a schedule with a violation, and shrinks it.
2. A fresh process plays that schedule again, to confirm the violation.
3. It plays the schedule with all properties on, judges the violations, and explains them.

Tasks and results are plain data, so they can be sent to other processes.
"""

import time
from dataclasses import dataclass
from functools import lru_cache

from msgspec import structs
from paritybit.harness.campaigns.fresh import (
    FreshPlaying,
    begin_fresh,
    in_new_process,
    play_fresh,
)
from paritybit.harness.campaigns.search import (
    PlayingFailedError,
    SearchResult,
    ending_properties,
    hunt_properties,
    search,
    violates,
    without_error,
)
from paritybit.harness.checks.play import DeviceLostError, SchedulePlayer
from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.table import CHEAP_PROPERTIES, PROPERTIES
from paritybit.harness.explain.facts import Explanation
from paritybit.harness.explain.report import Observed, explanation, observe
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.records.case import Case, trial_name
from paritybit.harness.records.schema import BugRow, Counterexample, Status, TrialRow
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.bugs.catalogue import BUGS

OPEN = frozenset({Status.FAILED, Status.VACUOUS})
"""Statuses without a verdict: an internal error, or too little was tried."""


@dataclass(frozen=True)
class Task:
    """Play up to `examples` schedules on `trial`, drawn with `seed`."""

    trial: TrialConfig
    seed: int
    examples: int

    @property
    def bug(self) -> Bug | None:
        """The bug that is switched on, or None."""
        return BUGS[self.trial.bug] if self.trial.bug is not None else None

    @property
    def unaffected(self) -> str | None:
        """Why the bug cannot affect the runner. None if it can, or without a bug."""
        return self.bug.unaffected.get(self.trial.runner) if self.bug is not None else None

    @property
    def target(self) -> str | None:
        """The property that must be violated, or None."""
        return self.bug.expected.get(self.trial.runner) if self.bug is not None else None

    @property
    def name(self) -> str:
        """The name of the task's test and of its case file, different from all others of a run."""
        return trial_name(self.trial)


def row_of(
    task: Task,
    status: Status,
    found: SearchResult,
    finding: Counterexample | None,
    seconds: float,
    error: str | None = None,
) -> TrialRow:
    """Return the result of a task. `error` is the traceback of an internal error."""
    bug = task.bug
    row = TrialRow(
        trial=task.trial,
        status=status,
        error=error,
        schedules=found.schedules,
        steps=found.steps,
        replays=found.replays,
        padded_replays=found.padded_replays,
        seconds=round(seconds, 2),
        finding=finding,
    )
    if bug is None:
        return row
    return BugRow(
        **structs.asdict(row),
        bug=bug.name,
        thread=bug.thread,
        mechanism=bug.mechanism,
        detected_by=task.target,
        unaffected=task.unaffected,
        drawn=found.schedules if finding else None,
    )


def without_result(task: Task, error: str, seconds: float = 0.0) -> TrialRow:
    """Return the result of a task that an internal error ended."""
    return row_of(task, Status.FAILED, SearchResult(), None, seconds, error)


@lru_cache(maxsize=2)
def cached_player(trial: TrialConfig) -> SchedulePlayer:
    """Return the player of a trial. The cache has room for that of a bug and of its clean trial."""
    return SchedulePlayer(trial)


class TaskRunner:
    """Runs tasks in this process, and in new ones once a task has spoiled this one."""

    def __init__(self) -> None:
        self.spoiled = False

    def __call__(self, task: Task) -> TrialRow:
        """Return the result of a task. An internal error is a result, too."""
        spoiled, self.spoiled = self.spoiled, True
        try:
            result = in_new_process(run_task, task) if spoiled else run_task(task)
        except Exception as error:
            return without_result(task, traceback_of(error))
        self.spoiled = spoiled or result.spoiled
        return result


run_in_turn = TaskRunner()


def run_task(task: Task) -> TrialRow:
    """Run one task. A clean trial is checked for all properties, a hunt for `hunt_properties`.

    If a bug must be detected, the fresh process starts in advance, and captures during the hunt.
    """
    started = time.monotonic()
    player = cached_player(task.trial)
    properties = frozenset(PROPERTIES) if task.bug is None else hunt_properties(task.target)
    if task.target is not None:
        begin_fresh(task.trial, properties)
    player.set_properties(properties)
    search_result, finding, error = SearchResult(), None, None
    try:
        search_result = search(player, task.target, task.seed, task.examples)
        without_error(search_result)
        schedule = confirm(task, search_result, properties)
        if schedule is not None:
            seen = _observe(task, schedule)
            finding = Counterexample(
                case_of(task, schedule, seen.outcome.violations), seen.timeline
            )
            status = _judge_found(task, finding)
            # After the verdict, because an error may spoil the process.
            finding = Counterexample(finding.case, seen.timeline, *explain(seen, task.target))
        elif search_result.unshrunk is not None:
            status = Status.UNDECLARED_STATE
            finding = Counterexample(case_of(task, search_result.unshrunk, search_result.seen))
        else:
            status = judge(task, search_result, len(player.capture_warnings))
    except DeviceLostError as lost:
        search_result.add(lost.outcome)
        finding = Counterexample(case_of(task, lost.schedule, lost.outcome.violations))
        status = Status.DEVICE_LOST
    except PlayingFailedError as failure:
        status, error = Status.FAILED, str(failure)
    seconds = time.monotonic() - started
    return row_of(task, status, search_result, finding, seconds, error)


def case_of(task: Task, schedule: Schedule, violations: tuple[Violation, ...]) -> Case:
    """Return the case of a task's finding."""
    return Case(task.trial, schedule, task.target, task.seed, violations)


def confirm(task: Task, search_result: SearchResult, properties: frozenset[str]) -> Schedule | None:
    """Return the shrunk schedule, or else the drawn one, if a fresh process reproduces its finding.

    Returns None if the finding depends on what this process played before, and if there is none.
    Raises PlayingFailedError for an internal error.
    """
    for schedule in (search_result.schedule, search_result.unshrunk):
        if schedule is not None:
            playing = FreshPlaying(task.trial, properties, ending_properties(task.target), schedule)
            if violates(without_error(play_fresh(playing)), task.target):
                return schedule
    return None


def _observe(task: Task, schedule: Schedule) -> Observed:
    """Play a schedule with all properties on. Raises PlayingFailedError for an internal error."""
    # What a player played before may hide the violation.
    for player_of in (cached_player, SchedulePlayer):
        player = player_of(task.trial)
        player.set_properties(PROPERTIES)
        seen = observe(player, schedule)
        if violates(without_error(seen.outcome), task.target):
            break
    return seen


def explain(seen: Observed, target: str | None) -> tuple[Explanation | None, str | None]:
    """Explain the violations of a schedule. Returns the traceback if the explainer fails."""
    try:
        return explanation(seen, target), None
    except Exception as error:
        return None, traceback_of(error)


def judge(task: Task, search_result: SearchResult, capture_warnings: int) -> Status:
    """Return the status of a task without a finding.

    A task is vacuous if it had no replay, no padded replay or, with overlapping steps, no overlap.
    A clean trial is also vacuous if no sample was compared with the oracle.
    """
    if task.target is not None:
        return Status.WRONG_PROPERTY if search_result.violated else Status.MISSED
    compared = task.bug is not None or search_result.compared
    overlapped = not task.trial.overlap or search_result.overlapped
    if not (search_result.replays and search_result.padded_replays and compared and overlapped):
        return Status.VACUOUS
    if task.bug is not None:
        return Status.UNAFFECTED
    return Status.CAPTURE_WARNED if capture_warnings else Status.GREEN


def _judge_found(task: Task, finding: Counterexample) -> Status:
    """Return the status of a finding: whether it is the target, and only occurs with the bug."""
    target = task.target
    if target is None:
        return Status.RED if task.bug is None else Status.AFFECTED_AFTER_ALL
    if target not in {violation.property for violation in finding.violations}:
        return Status.NOT_REPRODUCED
    clean = cached_player(task.trial.clean)
    clean.set_properties(CHEAP_PROPERTIES | ending_properties(target))
    violations = without_error(clean.play(finding.case.schedule)).violations
    return Status.CLEAN_IS_RED if violations else Status.CAUGHT
