"""Where in the code of a subject a message was logged."""

import logging
import sys
from dataclasses import dataclass
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
        root, frame, found = Path(__file__).parents[3], sys._getframe(), []
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(root / "subjects") and path.name not in BETWEEN:
                found.append((qualified_name(frame), path.relative_to(root), frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        functions = tuple(name for name, _, _ in reversed(found))
        file, line = (found[0][1].as_posix(), found[0][2]) if found else ("", 0)
        self.sites.append(LogSite(record.getMessage(), functions, file, line))


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
