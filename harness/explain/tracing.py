"""Following the engine's own lines as they run: where a value first stands, what sets a thing.

A line that is followed is of the engine: of `subjects`, of the tables and the allocator in
`reference`, and of the host's scheduler.
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
"""Functions of the engine that change what it does, for the harness's sake."""

BETWEEN = ("subjects/parts.py", "subjects/captured.py")
"""Files that calls of the engine come through: none of them is a place to look at."""

RECORDS = (KeyLists, Keys, StatePaths, TokenInputs)
"""Records of tensors that the engine makes in a forward."""

MOST_HELD = 64
"""Values of a list that are looked at."""

RAISED_IN = "raised in "
"""What a line is said to be of that an error came through."""

Sources = tuple[SourceLine, ...]

Seen = Callable[[FrameType, int, Any], None]
"""Called after a line has run: its frame, the line, and what it returned if it returned."""


@cache
def shown_file(path: str) -> str | None:
    """Return the path of one of the engine's files below this tree; None for any other file."""
    file = Path(path).resolve()
    if not file.is_relative_to(SOURCES):
        return None
    name = file.relative_to(SOURCES).as_posix()
    followed = name.startswith((*ENGINE, *HOST)) and name not in BETWEEN
    return name if followed else None


@contextmanager
def following(seen: Seen) -> Iterator[None]:
    """Call `seen` after each line of the engine that runs while entered."""
    before = sys.gettrace()
    last: dict[FrameType, int] = {}

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event in ("line", "return"):
            if frame in last:
                seen(frame, last[frame], argument if event == "return" else None)
            last[frame] = frame.f_lineno
        if event == "return":
            last.pop(frame, None)
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        followed = shown_file(frame.f_code.co_filename) is not None
        return local if followed and frame.f_code.co_name not in HOOKS else None

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def lines_of(frame: FrameType, line: int, what: str) -> tuple[SourceLine, ...]:
    """Return a line of a frame and those that called it, the innermost first."""
    innermost = SourceLine(f"{what} in {qualified_name(frame)}", _file(frame), line)
    outer = (
        SourceLine(f"called in {qualified_name(one)}", _file(one), one.f_lineno)
        for one in callers_of(frame)
    )
    return (innermost, *outer)


def callers_of(frame: FrameType) -> Iterator[FrameType]:
    """Yield the frames of the engine that led to a frame, the innermost first."""
    outer = frame.f_back
    while outer is not None:
        if shown_file(outer.f_code.co_filename) is not None:
            yield outer
        outer = outer.f_back


def frames_calling() -> list[FrameType]:
    """Return the frames of the engine that led to this call, the innermost first."""
    return list(callers_of(sys._getframe(1)))


def calling(what: str) -> tuple[SourceLine, ...]:
    """Return the lines of the engine that led to this call, the innermost first."""
    frame = next(iter(frames_calling()), None)
    return () if frame is None else lines_of(frame, frame.f_lineno, what)


def raised_at(error: BaseException) -> tuple[SourceLine, ...]:
    """Return the lines of the engine at which an error was raised, the innermost first.

    Behind that come the functions that made what it depends on.
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
    """Follows what `say` says after every line, and keeps the lines at which it last changed.

    `say` gets the frame whose line has run, None before the first. What comes between two lines of
    one change is followed too, so that only the last change, to what it says at the end, counts.
    """

    def __init__(self, say: Callable[[FrameType | None], Any], what: str) -> None:
        self.say, self.what = say, what
        self.said = say(None)
        self.lines: tuple[SourceLine, ...] = ()
        self._frame: FrameType | None = None
        self._called: dict[FrameType | None, dict[CodeType, SourceLine]] = {}

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Ask again."""
        if knows_something(frame):
            called = self._called.setdefault(next(callers_of(frame), None), {})
            called.pop(frame.f_code, None)  # The last one called comes last.
            called[frame.f_code] = SourceLine(f"calls {qualified_name(frame)}", _file(frame), line)
        said = self.say(frame)
        if said != self.said:
            self.said, self._frame = said, frame
            self.lines = lines_of(frame, line, self.what)

    @property
    def lines_with_called(self) -> tuple[SourceLine, ...]:
        """The lines, and behind the first of them the last line of each function called there.

        What ought to have been done beside the change may be missing in one of these. The last one
        called comes first.
        """
        called = self._called.get(self._frame, {}).values()
        return (*self.lines[:1], *reversed(called), *self.lines[1:])


def knows_something(frame: FrameType) -> bool:
    """Whether a frame is of a function that is given anything but the object it belongs to."""
    return not {"self", ".0"}.issuperset(arguments_of(frame))


def arguments_of(frame: FrameType) -> tuple[str, ...]:
    """Return the names of what a frame's function is given."""
    code = frame.f_code
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def values_of(names: Mapping[str, Any], returned: Any) -> Iterator[Any]:
    """Yield the values that a frame holds, and what lies in those that hold several."""
    for value in (*names.values(), returned):
        yield from held_in(value)


def held_in(value: Any) -> Iterator[Any]:
    """Yield a value, and what lies in it if it is a collection, lists of keys, or paths."""
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
    """Whether a record has a whole number beside its tensors."""
    held = vars(value).values() if isinstance(value, RECORDS) else ()
    return any(isinstance(one, int) and one == number for one in held)


def made_by(frame: FrameType, line: int) -> tuple[SourceLine, ...]:
    """Return the functions of the engine that made what a line of a frame depends on.

    These are called where a name is assigned that the line reads, or that such a line reads.
    """
    found = dict[SourceLine, None]()
    for name in sorted(callees(frame, line)):
        code = getattr(frame.f_globals.get(name), "__code__", None)
        file = shown_file(code.co_filename) if code is not None else None
        if code is not None and file is not None:
            found[SourceLine(f"made in {name}", file, code.co_firstlineno)] = None
    return tuple(found)


def callees(frame: FrameType, line: int) -> set[str]:
    """Return the names of what is called to assign what a line reads, directly or not."""
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

    Of a line that raises, those that decide whether it does.
    """
    place = line - code.co_firstlineno + 1
    around = [
        node
        for node in ast.walk(tree_of(code))
        if isinstance(node, ast.stmt) and node.lineno <= place <= (node.end_lineno or 0)
    ]
    around.sort(key=lambda node: (node.end_lineno or 0) - node.lineno)
    if around and isinstance(around[0], ast.Raise) and isinstance(around[1], ast.If):
        return frozenset(names_in(around[1].test))
    return frozenset(names_in(around[0]) if around else ())


def names_in(node: ast.AST) -> set[str]:
    """Return the names that a piece of code reads."""
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, ast.Load)}


def tree_of(code: CodeType) -> ast.AST:
    """Return the syntax of a function, its lines counted from 1; nothing if it has no source."""
    try:
        return ast.parse(dedent("".join(inspect.getsourcelines(code)[0])))
    except (OSError, SyntaxError):
        return ast.Module([], [])
