"""Lines of code to look at: a contract row, and the calls of an op."""

import inspect
import re
import traceback
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.lockstep.tracebacks import file_of_engine
from paritybit.reference.ops import OpCall
from paritybit.subjects.runners.base import GraphRunner

from paritybit.places import SOURCES

MOST_CALLERS = 4
"""The number of lines of a call stack that are listed."""


def call_lines(what: str) -> Iterator[SourceLine]:
    """Yield the lines of the built-in engine that led to this call, innermost first."""
    for frame in reversed(traceback.extract_stack()):
        file = file_of_engine(frame.filename)
        if file is not None and file.startswith("subjects/") and frame.lineno is not None:
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
            self.lines = tuple(islice(call_lines(f"{call.name} is called"), MOST_CALLERS))
        super().append(call)


@cache
def contract_row(runner: type[GraphRunner], name: str) -> tuple[SourceLine, ...]:
    """Return the line of a static input's row in a runner's contract, if it is found.

    The runner's own file is searched first, then those of its base classes.
    """
    for owner in inspect.getmro(runner):
        path = Path(inspect.getfile(owner) if owner is not object else "").resolve()
        text = path.read_text() if path.is_relative_to(SOURCES) else ""
        row = re.search(rf"(ContractRow|keep|reset)\(\s*\"{re.escape(name)}\"", text)
        if row is not None:
            file, line = path.relative_to(SOURCES).as_posix(), text.count("\n", 0, row.start()) + 1
            return (SourceLine(f"the contract row of {name}", file, line),)
    return ()
