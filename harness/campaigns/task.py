"""Tasks: the independent pieces of a run, how one is run, and how it is judged.

A task is a trial, where its schedules come from, and a goal. It is plain data, so that it
can be handed to a worker process; so is its result.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from paritybit.harness.campaigns.benches import (
    LARGE,
    Benches,
    explained_small,
    forget_kept,
    kept_lockstep,
    kept_reaching,
)
from paritybit.harness.campaigns.confirm import Confirmed, confirmed
from paritybit.harness.campaigns.executor import Ended
from paritybit.harness.campaigns.finding import Finding
from paritybit.harness.campaigns.fresh import BeginFresh, PlayFresh, begin_fresh, play_fresh
from paritybit.harness.campaigns.hunt import (
    HuntResult,
    PlayingFailedError,
    draw,
    ends,
    failed,
    first_failure,
    hunt,
    hunted,
    narrowed,
    time_limit,
    whole,
    without_error,
)
from paritybit.harness.checks.expectations import expectation, unaffected_reason
from paritybit.harness.checks.explanation import (
    explained_unbuilt,
    observe,
)
from paritybit.harness.checks.of_schedules.dense_agreement import DENSE_AGREEMENT
from paritybit.harness.checks.play import DeviceLostError, Lockstep, Outcome
from paritybit.harness.checks.table import PROPERTIES, STEP_PROPERTIES, asked_of
from paritybit.harness.explain.facts import Reach, TimelineEntry
from paritybit.harness.explain.reach import AT_CAPTURE
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scale.shapes import with_small_pools
from paritybit.harness.lockstep.tracebacks import SubjectFailedError, traceback_of
from paritybit.harness.records.schema import STALLED
from paritybit.harness.schedules.coverage import OVERLAPPED
from paritybit.harness.schedules.schedule import Schedule, idle_modes
from paritybit.harness.schedules.traffic import traffic_schedules
from paritybit.reference.config import Shape
from paritybit.subjects.bugs.bug import Bug
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS
from paritybit.subjects.streams import STALLS

from paritybit.compat import StrEnum


class Source(StrEnum):
    """Where schedules come from."""

    GENERATED = "generated"
    TRAFFIC = "traffic"


class Status(StrEnum):
    """How a task ended. GREEN, UNAFFECTED and CAUGHT are as they should be.

    UNDECLARED_STATE is a finding that no fresh process shows. After DEVICE_LOST its process can
    use its device no more. FAILED is an error of ours, and no verdict on the trial.
    """

    GREEN = "green"
    RED = "red"
    CAUGHT = "caught"
    MISSED = "missed"
    WRONG_PROPERTY = "wrong property"
    UNAFFECTED = "unaffected"
    AFFECTED_AFTER_ALL = "affected after all"
    CLEAN_IS_RED = "fails without the bug too"
    VACUOUS = "vacuous"
    NOT_REPRODUCED = "not reproduced"
    UNDECLARED_STATE = "undeclared state"
    CAPTURE_WARNED = "warned at capture"
    DEVICE_LOST = "device lost"
    FAILED = "failed"


LARGE_SLOWER = 4
"""How many times as long a task over large pools may take."""

GOOD = frozenset({Status.GREEN, Status.CAUGHT, Status.UNAFFECTED})

OPEN = frozenset({Status.FAILED, Status.VACUOUS})
"""What says nothing of what was tried: an error of ours ended it, or it tried too little."""


@dataclass(frozen=True)
class Task:
    """Play up to `examples` schedules of `source` on `trial`, drawn by `seed`.

    `known` are schedules that failed elsewhere, which are played before any is drawn.
    """

    trial: TrialConfig
    source: Source
    seed: int
    examples: int
    known: tuple[Schedule, ...] = ()

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
        """Why the bug cannot affect the runner on trial, if there is a bug and it cannot."""
        return unaffected_reason(self.bug, self.trial.runner) if self.bug is not None else None

    @property
    def target(self) -> str | None:
        """The property that must be violated, if one must be."""
        return expectation(self.bug, self.trial.runner).detected_by if self.bug else None

    @property
    def seconds(self) -> float:
        """How long the task may take."""
        slower = LARGE_SLOWER if self.trial.large else 1
        return slower * time_limit(self.examples + len(self.known))

    @property
    def label(self) -> str:
        """What the task is called in a progress line."""
        what = f"{self.trial.bug or 'clean'}@{self.trial.runner}"
        overlap = ", overlap" * self.trial.overlap + ", wide" * bool(self.trial.max_context)
        overlap += "".join(f", {feature}" for feature in self.trial.features)
        shape = "" if self.trial.shape == Shape.TINY else f"{self.trial.shape} "
        return f"{what} ({shape}{self.trial.preset}, {self.trial.scheme}, {self.source}{overlap})"


@dataclass(frozen=True)
class Result:
    """What a task gave. `capture_warnings` were logged while its graphs were captured.

    `error` is the traceback of what made it fail, with no absolute path. `reach` says how far
    a bug got that must be detected.
    """

    task: Task
    status: Status
    hunt_result: HuntResult
    finding: Finding | None
    capture_warnings: int
    seconds: float
    error: str | None = None
    reach: Reach | None = None

    @property
    def spoiled(self) -> bool:
        """Whether the process that ran the task must not run another."""
        return self.status in {Status.DEVICE_LOST, Status.FAILED}


def result_of(ended: Ended[Task, Result]) -> Result:
    """Return the result of a task that has ended; one that gave none has failed."""
    if ended.result is not None:
        return ended.result
    hunt_result = HuntResult()
    return Result(ended.task, Status.FAILED, hunt_result, None, 0, ended.seconds, error=ended.error)


def watched_for(target: str | None) -> frozenset[str]:
    """Return the properties that a hunt for `target` checks: those of each step, and that one."""
    return STEP_PROPERTIES | ends(target)


def run_in_turn(task: Task) -> Result:
    """Run one of many tasks of this process, keeping its trial for the next one.

    The result of a hunt whose bug must be detected also says how far that bug got.
    """
    result = run_task(task, LARGE if task.trial.large else kept_lockstep, begin=begin_fresh)
    if result.spoiled:
        return result
    try:
        if task.trial.large:
            return replace(result, reach=_reach_small(task, result.finding))
        return replace(result, reach=_reach(task, kept_lockstep(task.trial), result.finding))
    except Exception as error:  # What was found stays in the result, beside the error.
        return replace(result, status=Status.FAILED, error=traceback_of(error))


def run_task(
    task: Task,
    lockstep_of: Callable[[TrialConfig], Lockstep] = Lockstep,
    play: PlayFresh = play_fresh,
    begin: BeginFresh | None = None,
) -> Result:
    """Run one task. The clean build is checked for every property, a broken one as it is hunted.

    What it finds is played again by `play`, in a fresh process. Where something must be found,
    `begin` starts that process beforehand, to initialise its device and build during the hunt.
    """
    started, stalled = time.monotonic(), STALLS.gates
    benches = lockstep_of if isinstance(lockstep_of, Benches) else Benches(lockstep_of)
    try:
        benches(task.trial)
    except SubjectFailedError as failure:
        return _unbuilt(task, failure, time.monotonic() - started)
    watched = frozenset(PROPERTIES) if task.bug is None else watched_for(task.target)
    if begin is not None and task.target is not None and not task.trial.large:
        begin(task.trial, hunted(task.target, watched))
    benches(task.trial).watch(watched)
    warnings = len(benches(task.trial).capture_warnings)
    hunt_result, finding, error = HuntResult(), None, None
    try:
        hunt_result = narrowed(benches(task.trial), task.target, partial(_search, task))
        warnings = len(benches(task.trial).capture_warnings)
        without_error(hunt_result)
        if hunt_result.schedule is not None:
            benches.release()
            shown = confirmed(task.trial, hunt_result, task.target, watched, play)
            finding = _finding(task, benches, shown)
            error = finding.error
        status = Status.FAILED
        if error is None:
            status = judge_task(task, hunt_result, finding, warnings, benches)
    except DeviceLostError as lost:
        hunt_result.add(lost.outcome)
        finding = Finding.of(lost.schedule, lost.outcome)
        status = Status.DEVICE_LOST
    except PlayingFailedError as failure:
        status, error = Status.FAILED, str(failure)
    if STALLS.gates > stalled:
        hunt_result.events[STALLED] += STALLS.gates - stalled
    return Result(
        task=task,
        status=status,
        hunt_result=hunt_result,
        finding=finding,
        capture_warnings=warnings,
        seconds=time.monotonic() - started,
        error=error,
    )


def _unbuilt(task: Task, failure: SubjectFailedError, seconds: float) -> Result:
    """Return the result of a task whose engine could not be captured: no step was played."""
    outcome, found = explained_unbuilt(task.trial.runner, failure)
    finding = Finding.of(Schedule(()), outcome, found=found)
    wanted = Status.CAUGHT if task.target in outcome.violated else Status.WRONG_PROPERTY
    status = Status.RED if task.bug is None else wanted
    return Result(task, status, HuntResult(), finding, 0, seconds)


def _search(task: Task, lockstep: Lockstep) -> HuntResult:
    """Play the task's schedules until one violates its target, and shrink that one."""
    if task.source is Source.GENERATED:
        return hunt(lockstep, task.target, task.seed, task.examples, first=task.known)
    return first_failure(lockstep, pieces_of(task.trial, task.examples, task.seed), task.target)


def _finding(task: Task, benches: Benches, shown: Confirmed) -> Finding:
    """Play a schedule that a fresh process shows with every property on, and explain it.

    Raises PlayingFailedError for a playing that failed. An explainer that fails leaves its
    traceback in the finding.
    """
    if shown.undeclared is not None:
        return Finding.of_undeclared_state(shown)
    schedule = shown.schedule
    outcome, timeline = _seen_whole(task, benches, schedule)
    if not (failed(outcome, task.target) or task.trial.large):
        benches = Benches()  # What was played before hides it.
        outcome, timeline = _seen_whole(task, benches, schedule)
    found = explained_small(benches, task.trial, schedule, outcome, timeline, task.target)
    return Finding.of(schedule, outcome, timeline, found)


def _seen_whole(
    task: Task, benches: Benches, schedule: Schedule
) -> tuple[Outcome, list[TimelineEntry]]:
    """Play a schedule with every property on. Raises PlayingFailedError if that fails."""
    benches(task.trial).watch(PROPERTIES)
    outcome, timeline = observe(benches(task.trial), schedule)
    return whole(outcome), timeline


def _reach(task: Task, lockstep: Lockstep, finding: Finding | None) -> Reach | None:
    """Say how far a bug that must be detected got: in what was found, else in all that was drawn.

    None where nothing must be detected.
    """
    if task.bug is None or task.target is None:
        return None
    if lockstep.refused is not None:
        return AT_CAPTURE
    schedules = [] if finding is None else [finding.schedule]
    if finding is None and task.source is Source.GENERATED:
        draw(task.trial, schedules.append, task.seed, task.examples)
    elif finding is None:
        schedules = pieces_of(task.trial, task.examples, task.seed)
    return kept_reaching(task.trial).count(schedules)


def _reach_small(task: Task, finding: Finding | None) -> Reach | None:
    """Say how far a bug got as `_reach` does, over small pools where the trial's own are large.

    None where a finding does not show there.
    """
    if task.target is None:
        return None
    LARGE.clear()
    small = replace(task, trial=with_small_pools(task.trial))
    try:
        lockstep = kept_lockstep(small.trial)
        if finding is not None:
            lockstep.watch(watched_for(task.target))
            if task.target not in whole(lockstep.play(finding.schedule)).violated:
                return None
        return _reach(small, lockstep, finding)
    finally:
        del lockstep
        forget_kept()
        LARGE.clear()


def pieces_of(trial: TrialConfig, count: int, seed: int) -> list[Schedule]:
    """Return pieces of traffic that drive the runner on trial, idle replays of it included."""
    config, under_test = trial.model, RUNNERS[trial.runner].mode
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
    """Say how a task ended. Raises PlayingFailedError if the clean build could not be played.

    Nothing counts that replayed no graph, or none with padding, or, on the clean build, held
    nothing against the oracle where that is asked. Nor does a trial of overlapping steps of which
    none did.
    """
    target = task.target
    if finding is not None:
        return _judge_found(task, finding, lockstep_of)
    if target is not None:
        return Status.WRONG_PROPERTY if hunt_result.violated else Status.MISSED
    asked = DENSE_AGREEMENT.id in asked_of(large=task.trial.large)
    judged = task.bug is not None or not asked or hunt_result.events["held against the oracle"]
    overlapped = not task.trial.overlap or hunt_result.events[OVERLAPPED]
    if not (hunt_result.replays and hunt_result.padded_replays and judged and overlapped):
        return Status.VACUOUS
    if task.bug is not None:
        return Status.UNAFFECTED
    return Status.CAPTURE_WARNED if capture_warnings else Status.GREEN


def _judge_found(
    task: Task, finding: Finding, lockstep_of: Callable[[TrialConfig], Lockstep]
) -> Status:
    """Say whether a finding is what was hunted, and a shrunk schedule shows the bug alone."""
    target = task.target
    if finding.undeclared:
        return Status.UNDECLARED_STATE
    if target is None:
        return Status.RED if task.bug is None else Status.AFFECTED_AFTER_ALL
    if target not in {violation["property"] for violation in finding.violations}:
        return Status.NOT_REPRODUCED
    clean = lockstep_of(task.clean_trial)
    clean.watch(watched_for(target))
    violations = whole(clean.play(finding.schedule)).violations
    return Status.CLEAN_IS_RED if violations else Status.CAUGHT
