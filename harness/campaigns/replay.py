"""Replays case files, and compares each with its recorded result."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from paritybit.harness.campaigns.fresh import InTurn
from paritybit.harness.campaigns.hunt import without_error
from paritybit.harness.checks.play import DeviceLostError, Lockstep, Outcome
from paritybit.harness.checks.table import DECLARED_STATE, PROPERTIES, STATEMENTS
from paritybit.harness.errors import CannotRunError, MalformedError, UnknownNameError, headline
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import Kind, load


@dataclass(frozen=True)
class Named:
    """A case, and the name of its file."""

    name: str
    case: Case


@dataclass(frozen=True)
class Replayed:
    """The result of one case. `as_said` is whether it reproduced its recorded result.

    `error` is the traceback of an internal error. The case has no verdict then.
    """

    name: str
    as_said: bool
    message: str
    error: str | None = None
    device_lost: bool = False

    @property
    def spoiled(self) -> bool:
        """Whether the process must not replay another case."""
        return self.device_lost or self.error is not None


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Return the case files of files and folders. Raises MalformedError for an empty folder."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise MalformedError(f"{path} contains no case file")
        found += inside
    return found


def load_known(path: Path, *kinds: type[Kind]) -> Kind:
    """Load a case. Raises as `load` does, and CannotRunError for a name that is unknown here."""
    try:
        return load(path, *kinds)
    except UnknownNameError as error:
        raise CannotRunError(str(error)) from error


def vacuous(outcome: Outcome) -> bool:
    """Whether an outcome proves nothing: no forward ran, and the engine could be captured."""
    return not outcome.steps and not outcome.violations


@lru_cache(maxsize=1)
def kept_lockstep(trial: TrialConfig) -> Lockstep:
    """Return the lockstep of a trial with all properties on, kept for all its cases."""
    return Lockstep(trial, frozenset(PROPERTIES))


def lockstep_of(case: Case) -> Lockstep:
    """Return a lockstep with all properties on that has played the history of a case.

    A case without a history gets the kept lockstep. Raises PlayingFailedError for an internal
    error.
    """
    if not case.history:
        return kept_lockstep(case.trial)
    lockstep = Lockstep(case.trial, frozenset(PROPERTIES))
    for schedule in case.history:
        without_error(lockstep.play(schedule))
    return lockstep


def replay(named: Named) -> Replayed:
    """Replay a case with all properties on, and compare the result with the recorded one."""
    try:
        return judged(named, lockstep_of(named.case).play(named.case.schedule))
    except DeviceLostError as lost:
        return judged(named, lost.outcome)


def judged(named: Named, outcome: Outcome) -> Replayed:
    """Compare the violations of a case's schedule with the recorded ones."""
    error = outcome.error
    if error is not None:
        return failed(named, error)
    if vacuous(outcome):
        message = "runs no forward, so it proves nothing"
        return Replayed(named.name, as_said=False, message=message)
    wanted, found = named.case.expected, outcome.violated
    if found and named.case.history:
        found |= {DECLARED_STATE}
    as_said = wanted <= found if wanted else not found
    shown = ", ".join(name for name in STATEMENTS if name in found) or "clean"
    missing = f"; expected {', '.join(sorted(wanted)) or 'no violation'}" * (not as_said)
    return Replayed(named.name, as_said, f"{shown}{missing}", device_lost=outcome.device_lost)


def failed(named: Named, error: str) -> Replayed:
    """Return the result of a case with an internal error."""
    return Replayed(named.name, as_said=False, message=headline(error), error=error)


def replay_all(cases: Iterable[Named]) -> Iterator[Replayed]:
    """Replay cases one after another, and yield the result of each."""
    in_turn = InTurn(replay)
    for named in cases:
        try:
            yield in_turn(named)
        except Exception as error:
            yield failed(named, traceback_of(error))
