"""One example database that many runs share: the cases that any of them found.

Hypothesis's own, a folder, which may lie on a file system that a team shares. A case stands there
as its file's text, so that any build can say whether it can read it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from hypothesis.database import DirectoryBasedExampleDatabase
from paritybit.harness.errors import MalformedError
from paritybit.harness.records.case import Case, case_of, dump_json
from paritybit.harness.schedules.schedule import Schedule

KEY = b"paritybit cases"


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
    except OSError as error:  # Hypothesis would say nothing.
        raise MalformedError(
            f"cannot write to the database folder {folder}: {error.strerror}"
        ) from error
    found: dict[str, dict[Schedule, None]] = {}
    unread = 0
    for text in sorted(DirectoryBasedExampleDatabase(folder).fetch(KEY)):
        try:
            case = case_of(json.loads(text), "a case of the database")
        except (ValueError, RecursionError):  # Of another build, or no case at all.
            unread += 1
        else:
            found.setdefault(case.trial.runner, {})[case.schedule] = None
    return Known({runner: tuple(schedules) for runner, schedules in found.items()}, unread)


def save(folder: Path, cases: Iterable[Case]) -> None:
    """Add cases to a database; one that needs others played before it is no schedule by itself."""
    database = DirectoryBasedExampleDatabase(folder)
    for case in cases:
        if not case.history:
            database.save(KEY, dump_json(case.to_json()).encode())
