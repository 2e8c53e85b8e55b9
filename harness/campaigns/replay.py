"""Replaying case files: one with all that it tells, or many, each against what it says."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from harness.campaigns.case import Case, load_case
from harness.checks.play import Lockstep, Outcome
from harness.checks.table import PROPERTIES
from harness.lockstep.config import CannotRunError, UnknownNameError, require_cuda, resolve_device


@dataclass(frozen=True)
class Replayed:
    """How one of many cases ended: whether as it says, and in words."""

    name: str
    as_said: bool
    message: str


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Return the case files named, a folder's in order. Raises ValueError for an empty one."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path.name} holds no case file")
        found += inside
    return found


def load_here(path: Path, device: str | None) -> Case:
    """Return the case of a file that can run here, on `device` if one is named.

    Raises ValueError for a malformed one, CannotRunError for one that this build or machine
    cannot run.
    """
    try:
        case = load_case(path)
    except UnknownNameError as error:
        raise CannotRunError(f"{path.name} names what this build lacks: {error}") from error
    if device is not None and resolve_device(device) != case.trial.device:
        found = case.trial.device
        raise CannotRunError(f"{path.name} was found on {found}; it replays there alone")
    if case.trial.device == "cuda":
        require_cuda()
    return case


def vacuous(outcome: Outcome) -> bool:
    """Whether an outcome proves nothing: no forward ran, and the build was not refused."""
    return not outcome.steps and not outcome.violations


def replay_alike(work: Sequence[tuple[str, Case]]) -> list[Replayed]:
    """Replay named cases of one trial, captured once, with all properties on."""
    lockstep = Lockstep(work[0][1].trial, frozenset(PROPERTIES))
    return [judged(name, case, lockstep.play(case.schedule)) for name, case in work]


def judged(name: str, case: Case, outcome: Outcome) -> Replayed:
    """Hold what a case's schedule violated against what it says."""
    if vacuous(outcome):
        return Replayed(name, as_said=False, message="runs no forward, so it proves nothing")
    wanted, found = case.expected, outcome.violated
    as_said = wanted <= found if wanted else not found
    shown = ", ".join(each for each in PROPERTIES if each in found) or "clean"
    missing = f", expected {', '.join(sorted(wanted)) or 'clean'}" * (not as_said)
    return Replayed(name, as_said, f"{shown}{missing}")


def by_trial(cases: Iterable[tuple[str, Case]]) -> list[list[tuple[str, Case]]]:
    """Return named cases in groups of neighbours of one trial."""
    return [list(group) for _, group in groupby(cases, key=lambda each: each[1].trial)]
