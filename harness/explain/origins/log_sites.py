"""Where in the code of a subject a message was logged."""

import logging
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

from paritybit.harness.lockstep.logs import RecordTrap


@dataclass(frozen=True)
class LogSite:
    """The place in the subject where a message was logged: its functions, outermost first.

    `file` and `line` are those of the innermost function: the line that calls the logger.
    """

    message: str
    functions: tuple[str, ...]
    file: str
    line: int


BETWEEN = ("pool.py", "parts.py")
"""Files that every message passes through. None of them is the site."""


class SiteTrap(RecordTrap):
    """Keeps the place in the subject's code of each warning."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[LogSite] = []

    def hear(self, record: logging.LogRecord) -> None:
        """Keep the place of one message: the frames between the engine and the pool."""
        frame, found = sys._getframe(), []
        while frame is not None:
            if (file := file_of_subject(frame.f_code.co_filename)) is not None:
                found.append((qualified_name(frame), file, frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        functions = tuple(name for name, _, _ in reversed(found))
        file, line = found[0][1:] if found else ("", 0)
        self.sites.append(LogSite(record.getMessage(), functions, file, line))


@cache
def file_of_subject(name: str) -> str | None:
    """Return the path of a file of the subject below the root, or None for other files."""
    root, path = Path(__file__).parents[3], Path(name)
    if not path.is_relative_to(root / "subjects") or path.name in BETWEEN:
        return None
    return path.relative_to(root).as_posix()


def qualified_name(frame: FrameType) -> str:
    """Return the qualified name of a frame's function. In Python 3.10 its code has none."""
    code = frame.f_code
    if sys.version_info >= (3, 11):
        return code.co_qualname
    owners = type(frame.f_locals.get("self")).__mro__
    return next(
        (
            f"{owner.__qualname__}.{code.co_name}"
            for owner in owners
            if getattr(vars(owner).get(code.co_name), "__code__", None) is code
        ),
        code.co_name,
    )
