"""Replaying many case files, each against what it says."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paritybit.harness.campaigns.benches import LARGE
from paritybit.harness.campaigns.executor import Campaign, Ended
from paritybit.harness.campaigns.hunt import time_limit, whole
from paritybit.harness.checks.of_schedules.declared_state import DECLARED_STATE
from paritybit.harness.checks.play import DeviceLostError, Lockstep, Outcome
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.errors import CannotRunError, MalformedError, UnknownNameError, headline
from paritybit.harness.lockstep.config import TrialConfig, require_cuda, resolve_device
from paritybit.harness.records.case import Case, case_of, read_json


@dataclass(frozen=True)
class Named:
    """A case, the name of its file, and its place among those that are replayed."""

    place: int
    name: str
    case: Case


@dataclass(frozen=True)
class Replayed:
    """How one of many cases ended: whether as it says, and in words.

    `error` is the traceback of an error of ours, which leaves it without a verdict.
    """

    name: str
    as_said: bool
    message: str
    error: str | None = None
    device_lost: bool = False

    @property
    def spoiled(self) -> bool:
        """Whether the process that replayed it must not replay another."""
        return self.device_lost or self.error is not None


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Return the case files named, a folder's in order. Raises ValueError for an empty one."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise MalformedError(f"{path} contains no case file")
        found += inside
    return found


def load_here(path: Path, device: str | None) -> Case:
    """Return the case of a file that can run here. Raises as `read_json` and `case_here` do."""
    return case_here(read_json(path), path.name, device)


def case_here(data: Any, name: str, device: str | None) -> Case:
    """Return the case of a file's JSON data that can run here, on `device` if one is named.

    Raises MalformedError for a malformed one, CannotRunError for one that this build or machine
    cannot run.
    """
    try:
        case = case_of(data, name)
    except UnknownNameError as error:
        raise CannotRunError(f"{name} uses names that this build does not have: {error}") from error
    if device is not None and resolve_device(device) != case.trial.device:
        found = case.trial.device
        raise CannotRunError(f"{name} was recorded on {found} and can only be replayed there")
    if case.trial.device == "cuda":
        require_cuda()
    return case


def vacuous(outcome: Outcome) -> bool:
    """Whether an outcome proves nothing: no forward ran, and the build was not refused."""
    return not outcome.steps and not outcome.violations


@lru_cache(maxsize=1)
def kept_lockstep(trial: TrialConfig) -> Lockstep:
    """Return a lockstep of a trial with all properties on, captured once for all its cases."""
    return Lockstep(trial, frozenset(PROPERTIES))


def lockstep_of(case: Case) -> Lockstep:
    """Return a lockstep with all properties on that has played what a case has before it.

    Without such a history it is one that other cases were played on. Raises
    PlayingFailedError for a playing that failed.
    """
    if not case.history:
        if not case.trial.large:
            return kept_lockstep(case.trial)
        LARGE(case.trial).watch(PROPERTIES)
        return LARGE(case.trial)
    LARGE.clear()
    lockstep = Lockstep(case.trial, frozenset(PROPERTIES))
    for schedule in case.history:
        whole(lockstep.play(schedule))
    return lockstep


def replay(named: Named) -> Replayed:
    """Replay a case with all properties on, and hold what it violates against what it says."""
    try:
        return judged(named, lockstep_of(named.case).play(named.case.schedule))
    except DeviceLostError as lost:
        return judged(named, lost.outcome)


def judged(named: Named, outcome: Outcome) -> Replayed:
    """Hold what a case's schedule violated against what it says."""
    error = outcome.error
    if error is not None:
        return failed(named, error)
    if vacuous(outcome):
        message = "runs no forward, so it proves nothing"
        return Replayed(named.name, as_said=False, message=message)
    wanted, found = named.case.expected, outcome.violated
    if found and named.case.history:
        found |= {DECLARED_STATE.id}
    as_said = wanted <= found if wanted else not found
    shown = ", ".join(name for name in PROPERTIES if name in found) or "clean"
    missing = f"; expected {', '.join(sorted(wanted)) or 'no violation'}" * (not as_said)
    return Replayed(named.name, as_said, f"{shown}{missing}", device_lost=outcome.device_lost)


def failed(named: Named, error: str) -> Replayed:
    """Return how a case ended that an error of ours kept from a verdict."""
    return Replayed(named.name, as_said=False, message=headline(error), error=error)


def replayed(ended: Ended[Named, Replayed]) -> Replayed:
    """Return how a case ended, of a task that may have given no result."""
    return ended.result or failed(ended.task, ended.error or "")


REPLAYS = Campaign(
    replay,
    shared=lambda named: named.case.trial,
    seconds=lambda named: time_limit(1 + len(named.case.schedule.steps) + len(named.case.history)),
    label=lambda named: named.name,
)
"""How many cases are replayed: those of a trial by one process, if possible."""
