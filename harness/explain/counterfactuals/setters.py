"""The line that set an attribute of a Python object: last in a forward, or in the code."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

from paritybit.harness.explain.counterfactuals.objects import NOT_THERE, Attribute
from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.tracing import LastChange, held_in, shown_file
from paritybit.subjects.runners.base import GraphRunner
from torch import Tensor

from paritybit.places import SOURCES

SHOWN = 16
"""Values of a tensor that tell it from one that was written since."""


def set_at(recorded: RecordedForward, attribute: Attribute) -> tuple[SourceLine, ...]:
    """Return the line that sets an attribute in a forward, and those that called it.

    The forward is run again with the attribute as it was when the schedule began. Where that does
    not set it, there is no line.
    """
    watched = LastChange(lambda _: identity(attribute), "set")
    recorded.again(attributes=[attribute], seen=watched)
    return watched.lines


def identity(attribute: Attribute) -> tuple[Any, ...]:
    """Return what is another once an attribute is set, or what it holds changes."""
    value = getattr(attribute.holder, attribute.key, NOT_THERE)
    if isinstance(value, Tensor):
        return id(value), *value.flatten()[:SHOWN].tolist()
    if isinstance(value, dict):
        return id(value), len(value), *map(id, value.values())
    if isinstance(value, list | tuple | set):
        return id(value), len(value), *map(id, value)
    return (id(value),)


def with_setters(
    runner: GraphRunner | None, lines: tuple[SourceLine, ...]
) -> tuple[SourceLine, ...]:
    """Return lines with those, behind the first, that set what it reads of an object of a runner.

    What is not made in a forward was made where it was set.
    """
    if runner is None or not lines:
        return lines
    read = attributes_read(lines[0].file, lines[0].line)
    set_in = [line for name in sorted(read) if kept(runner, name) for line in setters(runner, name)]
    return (*lines[:1], *set_in[:2], *lines[1:])


def kept(runner: GraphRunner, name: str) -> bool:
    """Whether tensors lie under the name of an attribute of a runner, or of its graphs."""
    holders = (runner, *runner.captured.values())
    values = (getattr(holder, name, None) for holder in holders)
    return any(isinstance(one, Tensor) for value in values for one in held_in(value))


def setters(runner: GraphRunner, name: str) -> Iterator[SourceLine]:
    """Yield the lines of a runner's methods that set an attribute, those of the base class last."""
    for owner in inspect.getmro(type(runner)):
        for method in vars(owner).values():
            file = shown_file(method.__code__.co_filename) if inspect.isfunction(method) else None
            if file is None:
                continue
            lines, first = inspect.getsourcelines(method)
            for node in ast.walk(ast.parse(dedent("".join(lines)))):
                if not isinstance(node, ast.Attribute) or node.attr != name:
                    continue
                if isinstance(node.ctx, ast.Store):
                    line = first + node.lineno - 1
                    yield SourceLine(f"set in {method.__qualname__}", file, line)


@cache
def attributes_read(file: str, line: int) -> frozenset[str]:
    """Return the attributes that the statement at a line of one of the engine's files reads."""
    nodes = ast.walk(ast.parse((Path(SOURCES) / file).read_text(encoding="utf-8")))
    around = [
        node
        for node in nodes
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    smallest = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)
    found = (node for node in ast.walk(smallest) if isinstance(node, ast.Attribute))
    return frozenset(node.attr for node in found if isinstance(node.ctx, ast.Load))
