"""Tasks: the independent pieces of a run, each a trial, where its schedules come from, and a goal.

A task is plain data, so that it can be handed to a worker process; so is its result.
"""

import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from harness.hunt import Catch, hunt, sweep
from harness.lockstep import DeviceLostError, Lockstep, Outcome
from harness.schedule import Schedule
from harness.timeline import observe
from harness.traffic import traffic_schedules
from harness.trial import Trial
from harness.violation import PROPERTIES, STEP_PROPERTIES
from subjects.bugs import BUGS, Bug


class Source(StrEnum):
    """Where schedules come from."""

    GENERATED = "generated"
    TRAFFIC = "traffic"


class Status(StrEnum):
    """How a task ended. GREEN and MASKED and CAUGHT are as they should be."""

    GREEN = "green"
    RED = "red"
    CAUGHT = "caught"
    MISSED = "missed"
    WRONG_PROPERTY = "wrong property"
    MASKED = "masked"
    NOT_MASKED = "not masked"
    CLEAN_IS_RED = "clean is red too"
    VACUOUS = "vacuous"
    NOT_REPRODUCED = "not reproduced"
    CAPTURE_WARNED = "warned at capture"
    DEVICE_LOST = "device lost"
    FAILED = "failed"


GOOD = frozenset({Status.GREEN, Status.CAUGHT, Status.MASKED})


@dataclass(frozen=True)
class Task:
    """Play up to `examples` schedules of `source` on `trial`, drawn by `seed`."""

    trial: Trial
    source: Source
    seed: int
    examples: int

    @property
    def bug(self) -> Bug | None:
        """The bug that is switched on, if one is."""
        return BUGS[self.trial.bug] if self.trial.bug is not None else None

    @property
    def label(self) -> str:
        """What the task is called in a progress line."""
        what = self.trial.bug or "clean"
        return f"{what} ({self.trial.preset}, {self.trial.era}, {self.source})"


@dataclass(frozen=True)
class Finding:
    """A shrunk schedule that violates something, and all that all properties say of it."""

    schedule: Schedule
    violations: tuple[dict[str, Any], ...]
    timeline: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, schedule: Schedule, outcome: Outcome, timeline: list[dict[str, Any]]) -> "Finding":
        """Return the finding of one playing."""
        return cls(schedule, tuple(each.to_json() for each in outcome.violations), tuple(timeline))


@dataclass(frozen=True)
class Result:
    """What a task gave. `capture_warnings` were logged while its graphs were captured.

    After `device_lost` the process that ran the task can use its device no more.
    """

    task: Task
    status: Status
    catch: Catch
    finding: Finding | None
    capture_warnings: int
    seconds: float
    device_lost: bool = False
    error: str | None = None

    @classmethod
    def of_failure(cls, task: Task, error: BaseException) -> "Result":
        """Return the result of a task that a process could not carry out."""
        told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return cls(task, Status.FAILED, Catch(), None, 0, 0.0, device_lost=True, error=told)


def run_task(task: Task) -> Result:
    """Run one task."""
    started = time.monotonic()
    sought = task.bug.caught_by if task.bug is not None else None
    every = frozenset(PROPERTIES)
    watched = every if sought is None else STEP_PROPERTIES | {sought}
    lockstep = Lockstep(task.trial, watched)
    catch, finding, lost = Catch(), None, False
    try:
        catch = _search(task, lockstep, sought)
        if catch.schedule is not None:
            lockstep.watch(every)
            finding = Finding.of(catch.schedule, *observe(lockstep, catch.schedule))
        status = judge_task(task, catch, finding, len(lockstep.capture_warnings))
    except DeviceLostError as error:
        lost = True
        catch.add(error.outcome)
        finding = Finding.of(error.schedule, error.outcome, [])
        status = Status.DEVICE_LOST
    return Result(
        task=task,
        status=status,
        catch=catch,
        finding=finding,
        capture_warnings=len(lockstep.capture_warnings),
        seconds=time.monotonic() - started,
        device_lost=lost,
    )


def _search(task: Task, lockstep: Lockstep, sought: str | None) -> Catch:
    """Play the task's schedules until one violates what is sought, and shrink that one."""
    if task.source is Source.GENERATED:
        return hunt(lockstep, sought, task.seed, task.examples)
    config, max_bs = lockstep.arms.config, max(task.trial.buckets)
    pieces = traffic_schedules(config, max_bs, task.trial.room, task.examples, task.seed)
    return sweep(lockstep, pieces, sought)


def judge_task(task: Task, catch: Catch, finding: Finding | None, capture_warnings: int) -> Status:
    """Say how a task ended.

    Nothing counts that replayed no graph, or none with padding, or, with every property
    on, held nothing against the oracle.
    """
    sought = task.bug.caught_by if task.bug is not None else None
    if finding is not None and sought is not None:
        return _judge_catch(task, finding, sought)
    if finding is not None:
        return Status.RED if task.bug is None else Status.NOT_MASKED
    if sought is not None:
        return Status.WRONG_PROPERTY if catch.violated else Status.MISSED
    if not (catch.replays and catch.padded_replays and catch.events["held against the oracle"]):
        return Status.VACUOUS
    if task.bug is not None:
        return Status.MASKED
    return Status.CAPTURE_WARNED if capture_warnings else Status.GREEN


def _judge_catch(task: Task, finding: Finding, sought: str) -> Status:
    """Say whether a shrunk schedule shows the bug, and the bug alone."""
    if sought not in {each["property"] for each in finding.violations}:
        return Status.NOT_REPRODUCED
    clean = Lockstep(replace(task.trial, bug=None), STEP_PROPERTIES | {sought})
    return Status.CLEAN_IS_RED if clean.play(finding.schedule).violations else Status.CAUGHT
