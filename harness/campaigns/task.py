"""Tasks: the independent pieces of a run, each a trial, where its schedules come from, and a goal.

A task is plain data, so that it can be handed to a worker process; so is its result.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from harness.campaigns.hunt import HuntResult, first_failure, hunt
from harness.checks.explaining import Explained, explained
from harness.explain.facts import Explanation, TimelineEntry
from harness.lockstep.config import TrialConfig
from harness.lockstep.play import DeviceLostError, Lockstep, Outcome
from harness.lockstep.scheduler import idle_modes
from harness.lockstep.timeline import observe
from harness.lockstep.violation import PROPERTIES, STEP_PROPERTIES
from harness.schedules.schedule import Schedule
from harness.schedules.traffic import traffic_schedules
from reference.config import PRESETS
from subjects.bugs.catalogue import BUGS, Bug, unaffected_reason
from subjects.runners import RUNNERS


class Source(StrEnum):
    """Where schedules come from."""

    GENERATED = "generated"
    TRAFFIC = "traffic"


class Status(StrEnum):
    """How a task ended. GREEN, UNHARMED and CAUGHT are as they should be."""

    GREEN = "green"
    RED = "red"
    CAUGHT = "caught"
    MISSED = "missed"
    WRONG_PROPERTY = "wrong property"
    UNAFFECTED = "unaffected"
    AFFECTED_AFTER_ALL = "affected after all"
    CLEAN_IS_RED = "clean is red too"
    VACUOUS = "vacuous"
    NOT_REPRODUCED = "not reproduced"
    CAPTURE_WARNED = "warned at capture"
    DEVICE_LOST = "device lost"
    FAILED = "failed"


KEPT = 2
"""Locksteps that a process keeps: a trial's, broken and clean."""

GOOD = frozenset({Status.GREEN, Status.CAUGHT, Status.UNAFFECTED})


@dataclass(frozen=True)
class Task:
    """Play up to `examples` schedules of `source` on `trial`, drawn by `seed`."""

    trial: TrialConfig
    source: Source
    seed: int
    examples: int

    @property
    def bug(self) -> Bug | None:
        """The bug that is switched on, if one is."""
        return BUGS[self.trial.bug] if self.trial.bug is not None else None

    @property
    def clean_trial(self) -> TrialConfig:
        """The trial without its bug."""
        return self.trial.clean

    @property
    def unaffected(self) -> str | None:
        """Why the bug cannot harm the runner on trial, if there is a bug and it cannot."""
        return unaffected_reason(self.bug, self.trial.runner) if self.bug is not None else None

    @property
    def target(self) -> str | None:
        """The property that must be violated, if one must be."""
        return self.bug.detected_by if self.bug is not None and self.unaffected is None else None

    @property
    def label(self) -> str:
        """What the task is called in a progress line."""
        what = f"{self.trial.bug or 'clean'}@{self.trial.runner}"
        return f"{what} ({self.trial.preset}, {self.trial.scheme}, {self.source})"


@dataclass(frozen=True)
class Finding:
    """A shrunk schedule that violates something, and all that all properties say of it.

    `explanation` tells the root cause, where one was found; `error` is the traceback of an
    error of the explainer.
    """

    schedule: Schedule
    violations: tuple[dict[str, Any], ...]
    timeline: tuple[TimelineEntry, ...]
    explanation: Explanation | None = None
    error: str | None = None

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        outcome: Outcome,
        timeline: Sequence[TimelineEntry] = (),
        found: Explained | None = None,
    ) -> "Finding":
        """Return the finding of one playing."""
        violations = tuple(violation.to_json() for violation in outcome.violations)
        found = found or Explained()
        return cls(schedule, violations, tuple(timeline), found.explanation, found.error)


@dataclass(frozen=True)
class Result:
    """What a task gave. `capture_warnings` were logged while its graphs were captured.

    After `device_lost` the process that ran the task can use its device no more.
    """

    task: Task
    status: Status
    hunt_result: HuntResult
    finding: Finding | None
    capture_warnings: int
    seconds: float
    device_lost: bool = False
    error: str | None = None

    @classmethod
    def of_failure(cls, task: Task, error: BaseException) -> "Result":
        """Return the result of a task that a process could not carry out."""
        message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return cls(task, Status.FAILED, HuntResult(), None, 0, 0.0, device_lost=True, error=message)


@lru_cache(maxsize=KEPT)
def kept_lockstep(trial: TrialConfig) -> Lockstep:
    """Return a lockstep of a trial, built once for the tasks that follow one another."""
    return Lockstep(trial)


def run_in_turn(task: Task) -> Result:
    """Run one of many tasks of this process, of which neighbours share their trials."""
    return run_task(task, kept_lockstep)


def run_task(task: Task, lockstep_of: Callable[[TrialConfig], Lockstep] = Lockstep) -> Result:
    """Run one task. The clean build is checked for every property, a broken one at each step."""
    started = time.monotonic()
    target = task.target
    every = frozenset(PROPERTIES)
    lockstep = lockstep_of(task.trial)
    lockstep.watch(every if task.bug is None else STEP_PROPERTIES)
    hunt_result, finding, lost = HuntResult(), None, False
    try:
        hunt_result = _search(task, lockstep, target)
        if hunt_result.schedule is not None:
            lockstep.watch(every)
            outcome, timeline = observe(lockstep, hunt_result.schedule)
            found = explained(lockstep, hunt_result.schedule, outcome, timeline, target)
            finding = Finding.of(hunt_result.schedule, outcome, timeline, found)
        if finding is not None and finding.error is not None:
            status = Status.FAILED
        else:
            warnings = len(lockstep.capture_warnings)
            status = judge_task(task, hunt_result, finding, warnings, lockstep_of)
    except DeviceLostError as error:
        lost = True
        hunt_result.add(error.outcome)
        finding = Finding.of(error.schedule, error.outcome)
        status = Status.DEVICE_LOST
    return Result(
        task=task,
        status=status,
        hunt_result=hunt_result,
        finding=finding,
        capture_warnings=len(lockstep.capture_warnings),
        seconds=time.monotonic() - started,
        device_lost=lost,
        error=_explainer_error(finding),
    )


def _explainer_error(finding: Finding | None) -> str | None:
    """Say in one line that the explainer failed, if it did; the finding has the traceback."""
    if finding is None or finding.error is None:
        return None
    return f"the explainer failed: {finding.error.splitlines()[-1]}"


def _search(task: Task, lockstep: Lockstep, target: str | None) -> HuntResult:
    """Play the task's schedules until one violates what is sought, and shrink that one."""
    if task.source is Source.GENERATED:
        return hunt(lockstep, target, task.seed, task.examples)
    return first_failure(lockstep, pieces_of(task.trial, task.examples, task.seed), target)


def pieces_of(trial: TrialConfig, count: int, seed: int) -> list[Schedule]:
    """Return pieces of traffic that drive the runner on trial, idle replays of it included."""
    config, under_test = PRESETS[trial.preset].tiny, RUNNERS[trial.runner].mode
    idle = idle_modes(trial.modes)
    pick = idle.index(under_test) if under_test in idle else 0
    return traffic_schedules(config, max(trial.buckets), trial.room, count, seed, under_test, pick)


def judge_task(
    task: Task,
    hunt_result: HuntResult,
    finding: Finding | None,
    capture_warnings: int,
    lockstep_of: Callable[[TrialConfig], Lockstep] = Lockstep,
) -> Status:
    """Say how a task ended.

    Nothing counts that replayed no graph, or none with padding, or, on the clean build,
    held nothing against the oracle.
    """
    target = task.target
    if finding is not None and target is not None:
        return _judge_catch(task, finding, target, lockstep_of)
    if finding is not None:
        return Status.RED if task.bug is None else Status.AFFECTED_AFTER_ALL
    if target is not None:
        return Status.WRONG_PROPERTY if hunt_result.violated else Status.MISSED
    judged = task.bug is not None or hunt_result.events["held against the oracle"]
    if not (hunt_result.replays and hunt_result.padded_replays and judged):
        return Status.VACUOUS
    if task.bug is not None:
        return Status.UNAFFECTED
    return Status.CAPTURE_WARNED if capture_warnings else Status.GREEN


def _judge_catch(
    task: Task, finding: Finding, target: str, lockstep_of: Callable[[TrialConfig], Lockstep]
) -> Status:
    """Say whether a shrunk schedule shows the bug, and the bug alone."""
    if target not in {each["property"] for each in finding.violations}:
        return Status.NOT_REPRODUCED
    clean = lockstep_of(task.clean_trial)
    clean.watch(STEP_PROPERTIES)
    return Status.CLEAN_IS_RED if clean.play(finding.schedule).violations else Status.CAUGHT
