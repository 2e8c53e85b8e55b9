"""Names the lines of an engine that led to an event: the line itself and its callers.

A line of the engine is text such as `engine/pool.py:12 in Pool.free`.
"""

import inspect
import linecache
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

KEPT, DEEPEST = 8, 64
"""The most callers of a line, and frames that are looked at."""

MOST_SEEN = 10_000
"""The most stacks that are kept."""

CALLERS, INNER = 6, 2
"""The most callers of a line that are reported, and lines that it calls."""

AROUND, LONGEST = 3, 160
"""The lines before and after a line that an excerpt has, and the most characters of a line."""

WRAPPERS: dict[CodeType, Any] = {}
"""The engine's functions by the code of what takes their place and calls them."""

OWN = f"{Path(__file__).parents[1]}/"
"""The folder of paritybit, whose connectors have the names of engines."""

CONNECTORS: set[str] = set()
"""The files of other connectors, which may be in the package of their engine."""


class Stack(NamedTuple):
    """Lines of an engine, innermost first. What is before `lead` acts on behalf of its callers."""

    lines: tuple[str, ...] = ()
    lead: int = 0

    @property
    def line(self) -> str:
        """The leading line."""
        return self.lines[self.lead]


FILES: dict[str, str] = {}
"""The files of engines that were seen, by their path from the package on."""


NOWHERE = Stack()


def of_connector(path: str) -> bool:
    """Return whether a file belongs to paritybit or to another connector."""
    return path.startswith(OWN) or path in CONNECTORS


@cache
def engine_file(path: str, package: str) -> str | None:
    """Return the path of a file from its package on, or None if the package does not have it.

    A package may be a module in one file.
    """
    _, found, rest = path.replace("\\", "/").rpartition(f"/{package}/")
    shown = f"{package}/{rest}" if found else f"{package}.py"
    alone = getattr(sys.modules.get(package), "__file__", None) == path
    if not (found or alone) or of_connector(path):
        return None
    FILES[shown] = path
    return shown


def name_of(code: CodeType) -> str:
    """Return the name of a function with that of its class."""
    name: str = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified names.
    return name.replace("<locals>.", "")


@cache
def line_of(path: str, line: int, code: CodeType) -> str:
    """Return a line of the engine as text, with the function that it belongs to."""
    return f"{path}:{line} in {name_of(code)}"


def split(line: str) -> tuple[str, int, str]:
    """Return the file, the number and the function of a line."""
    place, _, function = line.partition(" in ")
    path, _, number = place.rpartition(":")
    return path, int(number) if number.isdecimal() else 0, function


@cache
def wraps(code: CodeType) -> bool:
    """Return whether a function has no arguments of its own, and passes on whatever it gets."""
    any_of = code.co_flags & CO_VARARGS and code.co_flags & CO_VARKEYWORDS
    return bool(any_of) and code.co_argcount <= 1  # It may be a method.


def code_of(function: Any) -> Any:
    """Return the code of a function without what wraps it, or None."""
    return getattr(inspect.unwrap(function), "__code__", None)


def note_connector(method: Any, original: Any) -> None:
    """Note the file of a connector's method, whose lines are none of the engine's.

    One file may have both, so that of the engine's function, which the method wraps, is not noted.
    """
    mine, theirs = (getattr(code_of(one), "co_filename", "") for one in (method, original))
    if mine not in {"", theirs} | CONNECTORS:
        CONNECTORS.add(mine)
        engine_file.cache_clear()


def first_line(function: Any, package: str) -> str | None:
    """Return the line where a function of an engine begins. None for a function of others."""
    code = code_of(function)
    path = None if code is None else engine_file(code.co_filename, package)
    return None if path is None else line_of(path, code.co_firstlineno, code)


_SEEN: dict[tuple[Any, ...], tuple[list[CodeType], Stack]] = {}
"""The stacks seen, and the code that keeps the addresses in their keys."""


def stack(package: str, frame: FrameType | None = None, inner: tuple[str, ...] = ()) -> Stack:
    """Return the innermost lines of an engine, from a frame or the caller on.

    What is in a file whose path has an `inner` part, such as an allocator's, acts on behalf of its
    caller. A function that passes on any arguments does not count.
    """
    key: list[Any] = [package, inner]
    codes = list[CodeType]()
    at: FrameType | None = frame or sys._getframe(1)
    first = at
    while at is not None and len(codes) < DEEPEST:
        code = at.f_code
        codes.append(code)
        key += id(code), at.f_lasti
        at = at.f_back
    seen = _SEEN.get(found := tuple(key))
    if seen is None:
        if len(_SEEN) >= MOST_SEEN:
            _SEEN.clear()
        seen = _SEEN[found] = codes, _stack(package, first, inner)
    return seen[1]


def _stack(package: str, frame: FrameType | None, inner: tuple[str, ...]) -> Stack:
    found, outer = list[str](), 0
    for _ in range(DEEPEST):
        if frame is None or outer > KEPT:
            break
        before = len(found)
        code = frame.f_code
        path = engine_file(code.co_filename, package)
        if path is not None and not wraps(code) and not code.co_name.startswith("<"):
            found.append(line_of(path, frame.f_lineno, code))
        elif code in WRAPPERS:
            line = first_line(WRAPPERS[code], package)
            if line is not None and not (found and found[-1].endswith(split(line)[2])):
                found.append(line)
        if len(found) > before and (outer or not any(part in found[-1] for part in inner)):
            outer += 1
        frame = frame.f_back
    return Stack(tuple(found), len(found) - outer if outer else 0)


def brief(line: str) -> str:
    """Return a line without the folders of its file."""
    return line.rpartition("/")[2]


def described(given: Stack, also: Sequence[Stack] = ()) -> tuple[str | None, str | None]:
    """Return the leading line of a stack, and as text the lines around it and of other writes."""
    lines, lead = given
    if not lines:
        return None, None
    place, _, function = lines[lead].partition(" in ")
    others = dict.fromkeys(one.line for one in also if one.line != given.line)
    parts = (
        ("in", [function] if function else []),
        ("which calls", list(map(brief, lines[:lead][: -INNER - 1 : -1]))),
        ("called at", list(map(brief, lines[lead + 1 :][:CALLERS]))),
        ("also written at", list(map(brief, others))[:INNER]),
    )
    return place, "; ".join(f"{how} {', '.join(some)}" for how, some in parts if some) or None


def lines_in(path: str) -> list[str]:
    """Return the lines of a file of an engine, or no lines if it cannot be read."""
    folders = (Path(folder or ".", path) for folder in sys.path)
    found = FILES.get(path) or next((str(file) for file in folders if file.is_file()), "")
    return linecache.getlines(found)


def excerpt(*parts: Mapping[str, Any] | None) -> list[tuple[int, str]]:
    """Return the numbers and texts of the lines that the journal keeps with a finding.

    `parts` are its cause and its free. The lines are those around the first readable `source`, such
    as `engine/pool.py:12`, below a folder of the import path.
    """
    for one in parts:
        path, number, _ = split(str((one or {}).get("source") or ""))
        if path and not Path(path).is_absolute():
            lines = lines_in(path)
            if 0 < number <= len(lines):
                first = max(1, number - AROUND)
                shown = lines[first - 1 : number + AROUND]
                return [(at, text.rstrip()[:LONGEST]) for at, text in enumerate(shown, first)]
    return []
