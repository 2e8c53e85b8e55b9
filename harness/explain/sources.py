"""Lines of code to look at: a contract row, the calls of an op, and the site of a warning."""

import inspect
import logging
import re
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.lockstep.logs import LogTrap
from paritybit.harness.lockstep.tracebacks import file_of_engine
from paritybit.reference.ops import OpCall
from paritybit.subjects.runners.base import GraphRunner

from paritybit.places import SOURCES

ENGINE = "subjects/"
BETWEEN = frozenset({"subjects/pool.py", "subjects/parts.py"})
"""Files that every message passes through. None of them is its site."""

MOST_CALLERS = 4
"""The number of lines of a call stack that are listed."""


def unique(lines: Iterable[SourceLine]) -> tuple[SourceLine, ...]:
    """Return lines without duplicate places."""
    found: dict[tuple[str, int], SourceLine] = {}
    for line in lines:
        found.setdefault((line.file, line.line), line)
    return tuple(found.values())


def line_of(what: str, code: Any) -> SourceLine:
    """Return the line at which a function, method or class of this tree begins."""
    plain = inspect.unwrap(code)
    file = Path(inspect.getfile(plain)).resolve().relative_to(SOURCES).as_posix()
    return SourceLine(what, file, inspect.getsourcelines(plain)[1])


def call_lines(what: str) -> tuple[SourceLine, ...]:
    """Return the lines of the engine that led to this call, innermost first."""
    return tuple(islice(_call_lines(what), MOST_CALLERS))


def _call_lines(what: str) -> Iterator[SourceLine]:
    for frame in reversed(traceback.extract_stack()):
        file = file_of_engine(frame.filename)
        if file is None or not file.startswith(ENGINE) or file in BETWEEN:
            continue
        if frame.lineno is not None:
            yield SourceLine(f"{what} in {frame.name}", file, frame.lineno)
            what = "called"


class LocatedCalls(list[OpCall]):
    """Op calls. Of number `wanted`, `lines` has the lines of the engine that called it."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.wanted = wanted
        self.lines: tuple[SourceLine, ...] = ()

    def append(self, call: OpCall) -> None:
        """Add one call."""
        if len(self) == self.wanted:
            self.lines = call_lines(f"{call.name} is called")
        super().append(call)


class SiteTrap(LogTrap):
    """Keeps the lines of the engine that log each warning, innermost first."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[SourceLine, ...]] = []

    def hear(self, record: logging.LogRecord) -> None:
        """Keep the lines of one message."""
        self.lines.append(call_lines("logged"))


@cache
def contract_row(runner: type[GraphRunner], name: str) -> SourceLine | None:
    """Return the line of a static input's row in a runner's contract, or None.

    The runner's own file is searched first, then those of its base classes.
    """
    for owner in inspect.getmro(runner):
        path = Path(inspect.getfile(owner) if owner is not object else "").resolve()
        text = path.read_text() if path.is_relative_to(SOURCES) else ""
        row = re.search(rf"(ContractRow|keep|reset)\(\s*\"{re.escape(name)}\"", text)
        if row is not None:
            file, line = path.relative_to(SOURCES).as_posix(), text.count("\n", 0, row.start()) + 1
            return SourceLine(f"the contract row of {name}", file, line)
    return None
