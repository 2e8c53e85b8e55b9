"""The line that last set an attribute of a Python object, in a forward or in the code."""

import ast
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import FrameType
from typing import Any

from paritybit.harness.explain.counterfactuals.objects import NOT_THERE, Attribute
from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.explain.origins.source_lines import line_of
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.explain.tracing import (
    LastChange,
    Seen,
    Sources,
    following,
    held_in,
    lines_of,
    shown_file,
    statements_around,
)
from paritybit.subjects.contracts import StaticInput
from paritybit.subjects.runners.base import GraphRunner
from torch import Tensor

from paritybit.places import SOURCES

INPUTS = "subjects/buffers.py"
"""The file that writes static inputs."""

SHOWN = 16
"""The values of a tensor to compare, to detect that it was written since."""


def set_at(recorded: RecordedForward, attribute: Attribute) -> tuple[SourceLine, ...]:
    """Return the line that sets an attribute in a forward, and its callers.

    The forward is run again with the attribute's value from the beginning of the schedule. Returns
    no line if that run does not set it.
    """
    watched = LastChange(lambda _: identity(attribute), "set")
    recorded.again(attributes=[attribute], seen=watched)
    return watched.lines


def identity(attribute: Attribute) -> tuple[Any, ...]:
    """Return a value that changes when an attribute is set, or when its contents change."""
    value = getattr(attribute.holder, attribute.key, NOT_THERE)
    if isinstance(value, Tensor):
        return id(value), *value.flatten()[:SHOWN].tolist()
    if isinstance(value, dict):
        return id(value), len(value), *map(id, value.values())
    if isinstance(value, list | tuple | set):
        return id(value), len(value), *map(id, value)
    return (id(value),)


def read_at(
    recorded: RecordedForward, again: Callable[[Seen], Any], attribute: Attribute
) -> Sources:
    """Return the last line that reads an attribute of a Python object, and its callers.

    The line that sets it comes second, and the innermost in the runner's own file third. `again`
    runs the forward while following its lines.
    """
    found, owner = list[Sources](), list[type]()

    def look(frame: FrameType, line: int, returned: object) -> None:
        file = shown_file(frame.f_code.co_filename) or ""
        if attribute.key in attributes_read(file, line):
            found.append(lines_of(frame, line, "made"))
            owner.append(type(frame.f_locals.get("self")))

    again(look)
    if not found:
        return ()
    own = [line for line in found[-1] if line.file == own_file(recorded)][:1]
    set_in = list(setters(owner[-1], attribute.key, of_records=True))[:1]
    return tuple(dict.fromkeys((*found[-1][:1], *set_in, *own, *found[-1])))


def own_file(recorded: RecordedForward) -> str | None:
    """Return the file of a forward's runner as it is shown, or None."""
    runner = recorded.runner
    return None if runner is None else shown_file(inspect.getfile(type(runner)))


def with_setters(runner: GraphRunner | None, lines: Sources) -> Sources:
    """Return lines, and after the first one the lines that set what it reads of a runner's object.

    A value that no forward makes was made where it was set.
    """
    if runner is None or not lines:
        return lines
    read = attributes_read(lines[0].file, lines[0].line)
    names = sorted(name for name in read if kept(runner, name))
    set_in = [line for name in names for line in setters(type(runner), name)]
    return (*lines[:1], *set_in[:2], *lines[1:])


def with_part(name: str, lines: Sources) -> Sources:
    """Return lines, with the code that gives the part of a static input that line 1 writes."""
    if not lines or lines[0].file != INPUTS:
        return lines
    return (lines[0], line_of(f"a part of {name} is given", StaticInput.head), *lines[1:])


def kept(runner: GraphRunner, name: str) -> list[Tensor]:
    """Return the tensors under an attribute name of a runner, or of its graphs."""
    holders = (runner, *runner.captured.values())
    values = (getattr(holder, name, None) for holder in holders)
    return [one for value in values for one in held_in(value) if isinstance(one, Tensor)]


def overwritten_at(
    runner: GraphRunner | None, lines: Sources, right: Tensor, play: Callable[[], Any]
) -> Sources:
    """Return the line that overwrites what a line reads of its runner, while `play` runs.

    Sets the tensors that it reads to the `right` values before.
    """
    if runner is None or not lines:
        return ()
    names = sorted(attributes_read(lines[0].file, lines[0].line))
    held = [one for name in names for one in kept(runner, name) if one.numel() == right.numel()]
    before = [one.clone() for one in held]
    for one in held:
        one.copy_(right.view(one.shape))
    change = LastChange(lambda _: [one.tolist() for one in held], "overwritten")
    if held:
        with following(change):
            play()
    for one, values in zip(held, before, strict=True):
        one.copy_(values)
    return change.lines[:1]


def setters(kind: type, name: str, *, of_records: bool = False) -> Iterator[SourceLine]:
    """Yield the lines of a class's methods that set an attribute. Base classes come last.

    With `of_records`, also yield lines that make another record with a value of that name.
    """
    for owner in inspect.getmro(kind):
        for method in vars(owner).values():
            file = shown_file(method.__code__.co_filename) if inspect.isfunction(method) else None
            if file is None:
                continue
            lines, first = inspect.getsourcelines(method)
            for node in ast.walk(ast.parse(dedent("".join(lines)))):
                attribute = isinstance(node, ast.Attribute) and node.attr == name
                stored = attribute and isinstance(node.ctx, ast.Store)  # type: ignore[attr-defined]
                made = of_records and isinstance(node, ast.keyword) and node.arg == name
                if stored or made:
                    line = first + node.lineno - 1  # type: ignore[attr-defined]
                    yield SourceLine(f"set in {method.__qualname__}", file, line)


@cache
def attributes_read(file: str, line: int) -> frozenset[str]:
    """Return the attributes that the statement at a line of one of the engine's files reads."""
    tree = ast.parse((Path(SOURCES) / file).read_text(encoding="utf-8"))
    smallest = statements_around(tree, line)[0]
    found = (node for node in ast.walk(smallest) if isinstance(node, ast.Attribute))
    return frozenset(node.attr for node in found if isinstance(node.ctx, ast.Load))
