"""Errors of the subject, in contrast to internal errors, and tracebacks without absolute paths."""

import re
import traceback
from contextlib import ContextDecorator
from functools import cache
from pathlib import Path
from typing import Any

from paritybit.places import SOURCES

ENGINE = ("subjects/", "reference/", "harness/lockstep/request_book.py")
"""The files of the engine, and of the host that runs it."""

BETWEEN = frozenset(
    {"reference/ops.py", "subjects/engine.py", "subjects/pool.py", "subjects/toggles.py"}
)
"""Files that the calls of an engine pass through. None of them is a place to look at."""


OUT_OF_MEMORY = "OutOfMemoryError"
"""The name of torch's class. A command that only shows records does not import torch."""


class SubjectFailedError(Exception):
    """The subject or the fresh engine failed in a step, or as it was built or captured.

    `extra_run` is the property whose extra run failed, or None if the step itself failed.
    """

    extra_run: str | None = None


class SubjectRuns(ContextDecorator):
    """A context that turns errors of the subject's code into SubjectFailedError.

    It is a class, because a new generator per use would slow down planning.
    """

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Raise SubjectFailedError for the kinds of errors that a faulty subject can cause."""
        if type(error).__name__ == OUT_OF_MEMORY:  # A larger device would not raise it.
            return
        if isinstance(error, IndexError | RuntimeError | ValueError):
            raise SubjectFailedError(first_line(error)) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without absolute paths, or else its type."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return str(without_paths(lines[0]))


def traceback_of(error: BaseException) -> str:
    """Return the whole traceback of an error, without absolute paths."""
    text: str = without_paths("".join(traceback.format_exception(error)))
    return text


@cache
def file_of_engine(path: str) -> str | None:
    """Return the path of an engine's file below this tree, or None for any other file."""
    file = Path(path).resolve()
    if not file.is_relative_to(SOURCES):
        return None
    name = file.relative_to(SOURCES).as_posix()
    return name if name.startswith(ENGINE) and name not in BETWEEN else None


def raised_at(error: BaseException) -> list[tuple[str, str, int]]:
    """Return function, file and line of the engine's frames that an error left, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[::-1]
    files = [file_of_engine(frame.filename) for frame in frames]
    return [
        (f"raised in {frame.name}", file, frame.lineno)
        for frame, file in zip(frames, files, strict=True)
        if file is not None and frame.lineno is not None
    ]


PATH = re.compile(r"(?:(?:file://|(?<![\w./:-]))/|(?:\.\./)+)[\w.+@-]+(?:/[\w.+@-]+)+/?")
"""A path with at least two names that is absolute or leaves the current folder."""


def without_paths(value: Any) -> Any:
    """Return JSON data in which each path in a text is relative to this tree, or its last name."""

    def shorten(found: re.Match[str]) -> str:
        path = Path(found[0])
        inside = path.is_relative_to(SOURCES)
        return path.relative_to(SOURCES).as_posix() if inside else path.name

    if isinstance(value, str):
        return PATH.sub(shorten, value)
    if isinstance(value, dict):
        return {key: without_paths(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(inside) for inside in value]
    return value
