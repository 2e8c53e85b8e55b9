"""Replays case files, and compares each with its recorded result."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paritybit.harness.campaigns.task import cached_player
from paritybit.harness.checks.play import DeviceLostError, Outcome, SchedulePlayer
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.errors import CannotRunError, MalformedError, UnknownNameError, headline
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import FileKind, load


@dataclass(frozen=True)
class Replayed:
    """The result of one case. `as_said` is whether it reproduced its recorded result.

    `error` is the traceback of an internal error. The case has no verdict then.
    """

    as_said: bool
    message: str
    error: str | None = None


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Return the case files of files and folders. Raises MalformedError for an empty folder."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise MalformedError(f"{path} contains no case file")
        found += inside
    return found


def load_known(path: Path, *kinds: type[FileKind]) -> FileKind:
    """Load a case. Raises as `load` does, and CannotRunError for a name that is unknown here."""
    try:
        return load(path, *kinds)
    except UnknownNameError as error:
        raise CannotRunError(str(error)) from error


def vacuous(outcome: Outcome) -> bool:
    """Whether an outcome proves nothing: no forward ran, and the engine could be captured."""
    return not outcome.steps and not outcome.violations


def player_of(case: Case) -> SchedulePlayer:
    """Return the player of a case's trial, with all properties on."""
    player = cached_player(case.trial)
    player.set_properties(PROPERTIES)
    return player


def replay(case: Case) -> Replayed:
    """Replay a case with all properties on, and compare the result with the recorded one.

    Once the device is lost, every later case fails with an internal error.
    """
    try:
        return judged(case, player_of(case).play(case.schedule))
    except DeviceLostError as lost:
        return judged(case, lost.outcome)
    except Exception as error:
        return failed(traceback_of(error))


def judged(case: Case, outcome: Outcome) -> Replayed:
    """Compare the violations of a case's schedule with the recorded ones."""
    if outcome.error is not None:
        return failed(outcome.error)
    if vacuous(outcome):
        return Replayed(as_said=False, message="runs no forward, so it proves nothing")
    wanted, found = case.expected, outcome.violated
    as_said = wanted <= found if wanted else not found
    shown = ", ".join(name for name in PROPERTIES if name in found) or "clean"
    missing = f"; expected {', '.join(sorted(wanted)) or 'no violation'}" * (not as_said)
    return Replayed(as_said, f"{shown}{missing}")


def failed(error: str) -> Replayed:
    """Return the result of a case with an internal error."""
    return Replayed(as_said=False, message=headline(error), error=error)
