"""The example database: a folder of cases that several runs share.

It can be on a shared file system. The name of a file is a digest of its text, so runs that find the
same case write the same file.
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
"""The number of digits in a file's name."""


@dataclass
class Known:
    """The schedules of a database, by the runner on which each failed.

    `unread` is the number of cases that this build cannot read.
    """

    by_runner: Mapping[str, tuple[Schedule, ...]] = field(default_factory=dict)
    unread: int = 0


def known(folder: Path) -> Known:
    """Return the content of a database. Raises MalformedError if the folder is not writable."""
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
        except MalformedError:  # From another build, or not a case.
            unread += 1
        else:
            found.setdefault(case.trial.runner, {})[case.schedule] = None
    return Known({runner: tuple(schedules) for runner, schedules in found.items()}, unread)


def save(folder: Path, cases: Iterable[Case]) -> None:
    """Add cases to a database, except those that need a history.

    Raises CannotRunError if a case cannot be written.
    """
    for case in cases:
        if not case.history:
            text = dump_json(case.to_json())
            name = hashlib.sha256(text.encode()).hexdigest()[:NAME_DIGITS]
            write_whole(folder / f"{name}.json", text)
