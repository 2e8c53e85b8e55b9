"""One example database that many runs share: the cases that any of them found.

A folder of case files, which may lie on a file system that a team shares. The name of each file is
a digest of its text, so that runs that find the same case write the same file.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from paritybit.harness.errors import MalformedError
from paritybit.harness.records.case import Case, dump_json, load_case
from paritybit.harness.records.files import write_whole
from paritybit.harness.schedules.schedule import Schedule

NAME_DIGITS = 16
"""Digits of a file's name."""


@dataclass
class Known:
    """The schedules of a database by the runner that each failed on, in an order of their own.

    `unread` counts the cases of it that this build cannot read.
    """

    by_runner: Mapping[str, tuple[Schedule, ...]] = field(default_factory=dict)
    unread: int = 0


def known(folder: Path) -> Known:
    """Return what a database holds. Raises MalformedError where nothing could be kept in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise MalformedError(
            f"cannot write to the database folder {folder}: {error.strerror}"
        ) from error
    found: dict[str, dict[Schedule, None]] = {}
    unread = 0
    for path in sorted(folder.glob("*.json")):
        try:
            case = load_case(path)
        except MalformedError:  # Of another build, or no case at all.
            unread += 1
        else:
            found.setdefault(case.trial.runner, {})[case.schedule] = None
    return Known({runner: tuple(schedules) for runner, schedules in found.items()}, unread)


def save(folder: Path, cases: Iterable[Case]) -> None:
    """Add cases to a database; one that needs others played before it is no schedule by itself.

    Raises CannotRunError where a case cannot be written.
    """
    for case in cases:
        if not case.history:
            text = dump_json(case.to_json())
            name = hashlib.sha256(text.encode()).hexdigest()[:NAME_DIGITS]
            write_whole(folder / f"{name}.json", text)
