"""Names lines of an engine's source, and reads what they assign and pass on."""

import linecache
import re
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType
from typing import Any


def named_in(name: str) -> list[str]:
    """Return the words in the name of an input that may be names in the engine's source."""
    return re.findall(r"[A-Za-z]\w{2,}", name)


def line_of(path: str, line: int, code: CodeType) -> str:
    """Return a line of the engine as text, with the function that it belongs to."""
    return f"{path}:{line} in {name_of(code)}"


def name_of(code: CodeType) -> str:
    """Return the name of a function with that of its class."""
    name: str = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified names.
    return name.replace("<locals>.", "")


def split(line: str, via: str | None = None) -> tuple[str, str | None]:
    """Return a line without its function, and a text that begins with the function."""
    place, _, name = line.partition(" in ")
    return place, "; ".join(filter(None, (f"in {name}" if name else None, via))) or None


def wraps(code: CodeType) -> bool:
    """Return whether a function has no arguments of its own, and passes on whatever it gets."""
    any_of = code.co_flags & CO_VARARGS and code.co_flags & CO_VARKEYWORDS
    return bool(any_of) and code.co_argcount <= 1  # It may be a method.


NAMED = re.compile(r"(?:\b(\w+)\.)?\b([A-Za-z]\w{2,})")
"""Matches a name, and the name of its owner if it is an attribute."""

TARGET = re.compile(
    r"(?:\b(\w+)\.)?\b(\w+)(?:\[[^\]=]*\])?(?:(?:\s*:[^=]+)?\s[-+*/|&]?=\s|\.\w+_\()"
)
"""Matches a name to which a line assigns, or which it changes in place."""

GIVEN = re.compile(r"(?:[(,=]\s*|^\s+)(?:\w+\.)*(\w+)(?:\[[^\]]*\])?\s*(?=[,)])")
"""Matches a name that a line passes to a function."""


def value_of(frame: FrameType, owner: str, name: str) -> Any:
    """Return the value of a local name, or of an attribute of `owner`. None if there is none."""
    held = frame.f_locals.get(owner or name)
    return getattr(held, name, None) if owner else held


def text_of(frame: FrameType, line: int) -> str:
    """Return a line of the source of a frame."""
    return linecache.getline(frame.f_code.co_filename, line)
