"""Lines of the code that a cause is about, found in the running code."""

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from paritybit.harness.explain.facts import Cause, CodeSite, SourceLine
from paritybit.subjects.contracts import StaticInput, keep, reset
from paritybit.subjects.runners.base import GraphRunner

from paritybit.places import SOURCES

ROWS = (StaticInput, keep, reset)
"""The function with which a row of a contract is written."""


def site_of(code: Any, message: str, name: str = "") -> CodeSite:
    """Return a function or class as the place in the code that does what `message` says.

    `name` replaces its name in the code.
    """
    line = line_of(name or code.__qualname__, code)
    return CodeSite(line.what, line.file, message, line.line)


def line_of(what: str, code: Any) -> SourceLine:
    """Return the line at which a function, method or class begins."""
    plain = inspect.unwrap(code)
    return SourceLine(what, _shown(inspect.getfile(plain)), inspect.getsourcelines(plain)[1])


def source_lines(runner: GraphRunner | None, cause: Cause) -> tuple[SourceLine, ...]:
    """Return the lines to look at for a cause from a forward of `runner`, nearest first.

    `runner` is None for an eager forward.
    """
    return unique(_lines(runner, cause))


def unique(lines: Iterable[SourceLine]) -> tuple[SourceLine, ...]:
    """Return lines without duplicate places."""
    found: dict[tuple[str, int], SourceLine] = {}
    for line in lines:
        found.setdefault((line.file, line.line), line)
    return tuple(found.values())


def _lines(runner: GraphRunner | None, cause: Cause) -> Iterator[SourceLine]:
    yield from cause.made
    site = cause.site
    if site is not None and site.line is not None:
        yield SourceLine(site.function, site.file, site.line)
    if runner is None:
        return
    subject = type(runner)
    for name in _inputs_named(cause):
        if name in runner.inputs.rows:
            row = contract_row(subject, name)
            yield from [row] if row is not None else []
            yield line_of(f"{name} is populated", subject.populate)
            yield line_of("static inputs are written", type(runner.inputs).populate)
        elif name in runner.metadata.buffers:
            yield line_of(f"{name} is written", subject.plan)
    if cause.baked is not None or cause.blame == "captured state":
        yield line_of("the graph is captured", subject.capture_all)
    if cause.listed is not None:
        yield line_of("the key lists are written", subject.plan)
    yield line_of("the graph is launched", subject.launch)


def _inputs_named(cause: Cause) -> Iterator[str]:
    """Yield the static inputs, and static lists, that a cause names."""
    if cause.index is not None and cause.index.buffer is not None:
        yield cause.index.buffer
    if cause.given is not None:
        yield cause.given.what.partition("[")[0]


@cache
def contract_row(runner: type[GraphRunner], name: str) -> SourceLine | None:
    """Return the line of a static input's row in a runner's contract, or None.

    The runner's own file is searched first, then those of its base classes.
    """
    for owner in inspect.getmro(runner):
        module = sys.modules[owner.__module__]
        path = getattr(module, "__file__", None)
        if path is None or not Path(path).is_relative_to(SOURCES):
            continue
        for node in ast.walk(ast.parse(Path(path).read_text())):
            if isinstance(node, ast.Call) and _is_row(node, vars(module), name):
                return SourceLine(f"the contract row of {name}", _shown(path), node.lineno)
    return None


def _is_row(call: ast.Call, names: dict[str, Any], name: str) -> bool:
    """Whether a call makes the row `name`, resolving its function in the module's `names`."""
    makes = isinstance(call.func, ast.Name) and names.get(call.func.id) in ROWS
    first = call.args[0] if call.args else None
    return makes and isinstance(first, ast.Constant) and first.value == name


def _shown(path: str) -> str:
    """Return the path of a source file below this tree, or the name of another file."""
    file = Path(path).resolve()
    return file.relative_to(SOURCES).as_posix() if file.is_relative_to(SOURCES) else file.name
