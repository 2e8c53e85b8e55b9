"""Traces the engine's own lines as they run, to find where a value first exists or is set.

Traced files are `subjects`, the tables and the allocator in `reference`, and the host's scheduler.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import CodeType, FrameType
from typing import Any

from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.explain.origins.log_sites import qualified_name
from paritybit.reference.model import TokenInputs
from paritybit.reference.state_pool import StatePaths
from paritybit.subjects.protocol import KeyLists, Keys

from paritybit.places import SOURCES

ENGINE = ("subjects/", "reference/allocator.py", "harness/lockstep/request_book.py")
HOST = ("harness/lockstep/scheduler.py", "harness/lockstep/speculation.py")
HOOKS = frozenset({"overwrite"})
"""Functions of the engine that change its behaviour for the harness."""

BETWEEN = ("subjects/parts.py", "subjects/captured.py")
"""Files that calls of the engine pass through. None of them is a place to look at."""

RECORDS = (KeyLists, Keys, StatePaths, TokenInputs)
"""Records of tensors that the engine makes in a forward."""

MOST_HELD = 64
"""The number of values of a list that are examined."""

RAISED_IN = "raised in "
"""The words for a line that an error came through."""

Sources = tuple[SourceLine, ...]

Seen = Callable[[FrameType, int, Any], None]
"""Called after a line has run, with its frame, the line, and the returned value, if any."""


@cache
def shown_file(path: str) -> str | None:
    """Return the path of an engine's file below this tree. None for any other file."""
    file = Path(path).resolve()
    if not file.is_relative_to(SOURCES):
        return None
    name = file.relative_to(SOURCES).as_posix()
    followed = name.startswith((*ENGINE, *HOST)) and name not in BETWEEN
    return name if followed else None


class _Local:
    """Traces the lines of functions. An object, because a function would hold itself."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.last: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> "_Local":
        """Call `seen` for the line before, if any."""
        if event in ("line", "return"):
            if frame in self.last:
                returned = argument if event == "return" else None
                self.seen(frame, self.last[frame], returned)
            self.last[frame] = frame.f_lineno
        if event == "return":
            self.last.pop(frame, None)
        return self


@contextmanager
def following(seen: Seen) -> Iterator[None]:
    """Call `seen` after each line of the engine that runs while entered."""
    before, local = sys.gettrace(), _Local(seen)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        followed = shown_file(frame.f_code.co_filename) is not None
        return local if followed and frame.f_code.co_name not in HOOKS else None

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def lines_of(frame: FrameType, line: int, what: str) -> tuple[SourceLine, ...]:
    """Return a line of a frame and the lines that called it, innermost first."""
    innermost = SourceLine(f"{what} in {qualified_name(frame)}", _file(frame), line)
    outer = (
        SourceLine(f"called in {qualified_name(one)}", _file(one), one.f_lineno)
        for one in callers_of(frame)
    )
    return (innermost, *outer)


def callers_of(frame: FrameType) -> Iterator[FrameType]:
    """Yield the frames of the engine that led to a frame, innermost first."""
    outer = frame.f_back
    while outer is not None:
        if shown_file(outer.f_code.co_filename) is not None:
            yield outer
        outer = outer.f_back


def frames_calling() -> list[FrameType]:
    """Return the frames of the engine that led to this call, innermost first."""
    return list(callers_of(sys._getframe(1)))


def calling(what: str) -> tuple[SourceLine, ...]:
    """Return the lines of the engine that led to this call, innermost first."""
    frame = next(iter(frames_calling()), None)
    return () if frame is None else lines_of(frame, frame.f_lineno, what)


def raised_at(error: BaseException) -> tuple[SourceLine, ...]:
    """Return the lines of the engine at which an error was raised, innermost first.

    They are followed by the functions that made the values it depends on.
    """
    found, made, trace = list[SourceLine](), tuple[SourceLine, ...](), error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if shown_file(frame.f_code.co_filename) is not None:
            words = f"{RAISED_IN}{qualified_name(frame)}"
            found.append(SourceLine(words, _file(frame), trace.tb_lineno))
            made = made_by(frame, trace.tb_lineno)
        trace = trace.tb_next
    return (*found[-1:], *made, *found[-2::-1]) if found else ()


def _file(frame: FrameType) -> str:
    return shown_file(frame.f_code.co_filename) or ""


class LastChange:
    """Follows the result of `say` after every line, and keeps the lines of its last change.

    `say` gets the frame whose line has run, or None before the first line. A value may change
    several times. Only the change to the final value counts.
    """

    def __init__(self, say: Callable[[FrameType | None], Any], what: str) -> None:
        self.say, self.what = say, what
        self.said = say(None)
        self.lines: tuple[SourceLine, ...] = ()
        self._frame: FrameType | None = None
        self._called: dict[FrameType | None, dict[CodeType, SourceLine]] = {}

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Compare again after a line."""
        if knows_something(frame):
            called = self._called.setdefault(next(callers_of(frame), None), {})
            called.pop(frame.f_code, None)  # The last function called comes last.
            called[frame.f_code] = SourceLine(f"calls {qualified_name(frame)}", _file(frame), line)
        said = self.say(frame)
        if said != self.said:
            self.said, self._frame = said, frame
            self.lines = lines_of(frame, line, self.what)

    @property
    def lines_with_called(self) -> tuple[SourceLine, ...]:
        """The lines. After the first come the last lines of the functions that it called.

        The code that is missing beside the change may belong in one of these functions. The last
        one called comes first.
        """
        called = self._called.get(self._frame, {}).values()
        return (*self.lines[:1], *reversed(called), *self.lines[1:])


def knows_something(frame: FrameType) -> bool:
    """Whether a frame's function has any argument besides `self`."""
    return not {"self", ".0"}.issuperset(arguments_of(frame))


def arguments_of(frame: FrameType) -> tuple[str, ...]:
    """Return the names of the arguments of a frame's function."""
    code = frame.f_code
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def values_of(names: Mapping[str, Any], returned: Any) -> Iterator[Any]:
    """Yield the values in a frame, and the values in its collections."""
    for value in (*names.values(), returned):
        yield from held_in(value)


def held_in(value: Any) -> Iterator[Any]:
    """Yield a value, and what it contains if it is a collection, key lists, or paths."""
    yield value
    held: Iterable[Any] = ()
    if isinstance(value, dict):
        held = value.values()
    elif isinstance(value, list | tuple):
        held = value[:MOST_HELD]
    elif isinstance(value, RECORDS):
        held = vars(value).values()
    for one in held:
        if isinstance(one, RECORDS):
            yield from held_in(one)
        else:
            yield one


def has_number(value: Any, number: Any) -> bool:
    """Whether a record has a certain integer beside its tensors."""
    held = vars(value).values() if isinstance(value, RECORDS) else ()
    return any(isinstance(one, int) and one == number for one in held)


def made_by(frame: FrameType, line: int) -> tuple[SourceLine, ...]:
    """Return the functions of the engine that made the values that a line of a frame depends on.

    They are called in assignments to a name that the line, or another such assignment, reads.
    """
    found = dict[SourceLine, None]()
    for name in sorted(callees(frame, line)):
        code = getattr(frame.f_globals.get(name), "__code__", None)
        file = shown_file(code.co_filename) if code is not None else None
        if code is not None and file is not None:
            found[SourceLine(f"made in {name}", file, code.co_firstlineno)] = None
    return tuple(found)


def callees(frame: FrameType, line: int) -> set[str]:
    """Return the names of the functions called to assign what a line reads, directly or not."""
    code = frame.f_code
    tree, place = tree_of(code), line - code.co_firstlineno + 1
    reads, called = set(names_used(code, line)), set[str]()
    assigned = [
        node for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.lineno < place
    ]
    for node in sorted(assigned, key=lambda node: -node.lineno):
        targets = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} - names_in(node)
        if targets & reads:
            reads |= names_in(node.value)
            calls = (one.func for one in ast.walk(node.value) if isinstance(one, ast.Call))
            called |= {one.id for one in calls if isinstance(one, ast.Name)}
    return called


@cache
def names_used(code: CodeType, line: int) -> frozenset[str]:
    """Return the names that the smallest statement around a line of a function reads.

    For a line that raises, return those that decide whether it does.
    """
    around = statements_around(tree_of(code), line - code.co_firstlineno + 1)
    if around and isinstance(around[0], ast.Raise) and isinstance(around[1], ast.If):
        return frozenset(names_in(around[1].test))
    return frozenset(names_in(around[0]) if around else ())


def statements_around(tree: ast.AST, line: int) -> list[ast.stmt]:
    """Return the statements around a line of a tree, the smallest first."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return sorted(around, key=lambda node: (node.end_lineno or 0) - node.lineno)


def names_in(node: ast.AST) -> set[str]:
    """Return the names that a piece of code reads."""
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, ast.Load)}


def tree_of(code: CodeType) -> ast.AST:
    """Return the syntax tree of a function, with lines counted from 1. Empty without a source."""
    try:
        return ast.parse(dedent("".join(inspect.getsourcelines(code)[0])))
    except (OSError, SyntaxError):
        return ast.Module([], [])
