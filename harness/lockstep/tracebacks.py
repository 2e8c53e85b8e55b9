"""Errors of the subject, kept apart from ours, and tracebacks as a record may hold them.

Such a traceback is whole, and has no absolute path.
"""

import re
import traceback
from contextlib import ContextDecorator
from pathlib import Path
from types import TracebackType
from typing import Any

from paritybit.places import SOURCES

SUBJECTS = SOURCES / "subjects"
"""Where the engine on trial lies."""

OUTSIDE_PARTS = 3
"""Last parts that stay of the path of a source file outside this tree."""


class SubjectFailedError(Exception):
    """The subject, or the fresh engine, could not run a step.

    `extra_run` is what asked for the further run that failed; None if the step itself did.
    """

    extra_run: str | None = None


class SubjectRuns(ContextDecorator):
    """Turns an error of what runs within into SubjectFailedError: it is the subject's.

    It has no state, so that one object serves all: a generator for each use would make planning a
    step some percent slower.
    """

    def __enter__(self) -> None:
        """Begin to run it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raise SubjectFailedError for an error of a kind that a subject's mistakes have."""
        if isinstance(error, IndexError | RuntimeError | ValueError):
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise SubjectFailedError(without_paths(said[0])) from error


SUBJECT_RUNS = SubjectRuns()


def subject_runs() -> SubjectRuns:
    """Return what turns an error of what runs in it into SubjectFailedError."""
    return SUBJECT_RUNS


def traceback_of(error: BaseException) -> str:
    """Return the whole traceback of an error, with no absolute path of a file."""
    text: str = without_paths(without_absolute_paths("".join(traceback.format_exception(error))))
    return text


PATH = re.compile(r"(?:(?:file://|(?<![\w./:-]))/|(?:\.\./)+)[\w.+@-]+(?:/[\w.+@-]+)+/?")
"""A path of two names at least that is absolute, or leaves the current folder."""


def without_paths(value: Any) -> Any:
    """Return JSON data, of each path in a text of it no more than the name it ends in."""
    if isinstance(value, str):
        return PATH.sub(lambda found: Path(found[0]).name, value)
    if isinstance(value, dict):
        return {key: without_paths(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(inside) for inside in value]
    return value


def without_absolute_paths(text: str) -> str:
    """Return the text of a traceback with paths below this tree, or the end of any other path."""

    def shown(found: re.Match[str]) -> str:
        path = Path(found[1])
        inside = path.is_relative_to(SOURCES)
        return (
            f'File "{path.relative_to(SOURCES) if inside else Path(*path.parts[-OUTSIDE_PARTS:])}"'
        )

    return re.sub(r'File "(/[^"]+)"', shown, text)
