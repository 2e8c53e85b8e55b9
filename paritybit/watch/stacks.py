"""Names the functions of an engine behind an event: its callers, and those whose results it used.

A line of the engine is text such as `engine/pool.py:12 in Pool.free`.
"""

import ast
import inspect
import linecache
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

CALLERS, KEPT = 4, 8
"""The callers of a line that are reported, and those among which its values are followed."""

MOST_CALLS = 20_000
"""The most calls that are looked at while the engine prepares one forward pass."""

MOST = 3
"""The most functions that are reported for a kind of origin."""

FIRST, EVERY = 100, 16
"""The first preparations of forward passes whose calls are noted, and then one in so many."""

WRAPPED = "wrapped"
"""The name of the function that takes the place of an engine's `original`, which it calls."""

OWN = str(Path(__file__).parents[1])
"""The folder of paritybit, whose connectors have the names of engines."""


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


@cache
def engine_file(path: str, package: str) -> str | None:
    """Return the path of a file from its package on, or None if the package does not have it."""
    _, found, rest = path.replace("\\", "/").rpartition(f"/{package}/")
    if not found or path.startswith(OWN):
        return None
    FILES[f"{package}/{rest}"] = path
    return f"{package}/{rest}"


def name_of(code: CodeType) -> str:
    """Return the name of a function with that of its class."""
    name: str = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified names.
    return name.replace("<locals>.", "")


def line_of(path: str, line: int, code: CodeType) -> str:
    """Return a line of the engine as text, with the function that it belongs to."""
    return f"{path}:{line} in {name_of(code)}"


def named_in(name: str) -> list[str]:
    """Return the words in the name of an input that may be names in the engine's source."""
    return re.findall(r"[A-Za-z]\w{2,}", name)


def split(line: str) -> tuple[str, int, str]:
    """Return the file, the number and the function of a line."""
    place, _, function = line.partition(" in ")
    path, _, number = place.rpartition(":")
    return path, int(number) if number.isdecimal() else 0, function


def wraps(code: CodeType) -> bool:
    """Return whether a function has no arguments of its own, and passes on whatever it gets."""
    any_of = code.co_flags & CO_VARARGS and code.co_flags & CO_VARKEYWORDS
    return bool(any_of) and code.co_argcount <= 1  # It may be a method.


def first_line(function: Any, package: str) -> str | None:
    """Return the line where a function of an engine begins. None for a function of others."""
    code: Any = getattr(inspect.unwrap(function), "__code__", None)
    path = None if code is None else engine_file(code.co_filename, package)
    return None if path is None else line_of(path, code.co_firstlineno, code)


def stack(package: str, frame: FrameType | None = None, inner: tuple[str, ...] = ()) -> Stack:
    """Return the innermost lines of an engine, from a frame or the caller on.

    What is in a file whose path has an `inner` part, such as an allocator's, acts on behalf of its
    caller. A function that passes on whatever arguments it gets does not count.
    """
    found, outer = list[str](), 0
    frame = frame or sys._getframe(1)
    while frame is not None and outer <= KEPT:
        before = len(found)
        code = frame.f_code
        path = engine_file(code.co_filename, package)
        if path is not None and not wraps(code) and not code.co_name.startswith("<"):
            found.append(line_of(path, frame.f_lineno, code))
        elif path is None and code.co_name == WRAPPED and code.co_filename.startswith(OWN):
            line = first_line(frame.f_locals.get("original"), package)
            if line is not None and not (found and found[-1].endswith(split(line)[2])):
                found.append(line)
        if len(found) > before and (outer or not any(part in found[-1] for part in inner)):
            outer += 1
        frame = frame.f_back
    return Stack(tuple(found), len(found) - outer if outer else 0)


def brief(line: str) -> str:
    """Return a line without the folders of its file."""
    return line.rpartition("/")[2]


def leading(given: Stack, words: Iterable[str] = ()) -> Stack:
    """Return a stack in which the innermost line leads whose statement has one of some names."""
    wanted = set(words)
    naming = (n for n, one in enumerate(given.lines) if not wanted.isdisjoint(names_at(one)))
    return given._replace(lead=next(naming, given.lead))


def told(given: Stack) -> tuple[str | None, str | None]:
    """Return the leading line of a stack, and as text the lines around it and their origins."""
    lines, lead = given
    if not lines:
        return None, None
    place, _, function = lines[lead].partition(" in ")
    results, setters = origins(lines)
    parts = (
        ("in", [function] if function else []),
        ("which calls", map(brief, lines[:lead][: -MOST - 1 : -1])),
        ("called at", map(brief, lines[lead + 1 :][:CALLERS])),
        ("with results of", results),
        ("with values set in", setters),
    )
    texts = ((how, ", ".join(some)) for how, some in parts)
    return place, "; ".join(f"{how} {text}" for how, text in texts if text) or None


# Which functions a line has called.

CALLED: dict[tuple[str, int], dict[int, CodeType]] = {}
"""The functions that each line of a file has called, by file and line."""


@cache
def calls_of(package: str) -> "Calls":
    """Return what notes the calls of a package in this process."""
    return Calls(package)


class Calls:
    """Notes which functions the lines of an engine call, while it prepares some forward passes.

    It lives as long as the process. Python 3.11 does not keep a function that traces alive until it
    has called it, and a collection of garbage in between may stop the tracing.
    """

    def __init__(self, package: str) -> None:
        self.package, self.turn, self.left = package, 0, 0
        self.function = self._called

    def start(self) -> None:
        """Note the calls of this thread, if it is time to."""
        self.turn += 1
        if (self.turn <= FIRST or not self.turn % EVERY) and sys.gettrace() is None:
            self.left = MOST_CALLS
            sys.settrace(self.function)

    def stop(self) -> None:
        """Note no more calls."""
        self.left = 0
        if sys.gettrace() is self.function:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note the call of a function of the engine."""
        del event, argument
        try:
            self.left -= 1
            if self.left < 0:  # The engine is idle, or another thread ended it.
                sys.settrace(None)
                return
            code = frame.f_code
            if self._engine(code) is None or code.co_name.startswith(("<", "__")):
                return
            caller, path = frame.f_back, None
            while caller is not None and (path := self._engine(caller.f_code)) is None:
                caller = caller.f_back
            if caller is not None and path is not None:
                CALLED.setdefault((path, caller.f_lineno), {})[id(code)] = code
        except Exception:  # It would be raised in the engine.
            self.left = 0

    def _engine(self, code: CodeType) -> str | None:
        """Return the file of a function of the engine that does not only pass on its arguments."""
        return None if wraps(code) else engine_file(code.co_filename, self.package)


# What a line depends on.


@dataclass(frozen=True)
class Statement:
    """The lines of a statement or of its head, the names that it changes, and those it uses."""

    first: int
    last: int
    changes: frozenset[str]
    uses: frozenset[str]
    kind: type[ast.stmt]


@dataclass(frozen=True)
class Function:
    """A function of a file: its lines, its parameters and its statements."""

    name: str
    first: int
    last: int
    parameters: frozenset[str]
    statements: tuple[Statement, ...]

    @property
    def ends(self) -> list[Statement]:
        """The statements that return, or write to a parameter or to a part of one in a loop."""
        parts, found = set(self.parameters), []
        for one in self.statements:
            if one.kind is ast.For and not parts.isdisjoint(one.uses):
                parts |= one.changes
            elif one.kind is ast.Return or not parts.isdisjoint(one.changes):
                found.append(one)
        return found


def used(node: ast.AST | None) -> Iterator[str]:
    """Yield the names whose values an expression uses. Those of attributes begin with a dot."""
    if isinstance(node, ast.Call):
        function = node.func
        yield from used(function.value) if isinstance(function, ast.Attribute) else ()
        for part in (*node.args, *(one.value for one in node.keywords)):
            yield from used(part)
    elif isinstance(node, ast.Name):
        yield from () if node.id in ("self", "cls") else (node.id,)
    elif node is not None:
        if isinstance(node, ast.Attribute):
            yield f".{node.attr}"
        for child in ast.iter_child_nodes(node):
            yield from used(child)


def changed(node: ast.AST) -> Iterator[str]:
    """Yield the names and attributes that an assignment to an expression changes."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield f".{node.attr}"
    elif isinstance(node, ast.Subscript | ast.Starred):
        yield from changed(node.value)
    elif isinstance(node, ast.Tuple | ast.List):
        for part in node.elts:
            yield from changed(part)


def statement(node: ast.stmt) -> Statement | None:
    """Return what a statement changes and uses. None for one that only contains others.

    A call whose result is not used may change its arguments, and the object whose method it is.
    """
    targets: list[Any] = [*getattr(node, "targets", ())]
    values: Sequence[ast.AST] = [node]
    last: ast.stmt | ast.expr = node
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets.append(node.target)
    elif isinstance(node, ast.For):
        values, last = [node.iter], node.iter
        targets.append(node.target)
    elif isinstance(node, ast.With):
        values, last = [one.context_expr for one in node.items], node.items[-1].context_expr
        targets += [one.optional_vars for one in node.items if one.optional_vars is not None]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        targets += call.args
        targets += [one.value for one in call.keywords]
        targets += [call.func.value] if isinstance(call.func, ast.Attribute) else []
    elif hasattr(node, "body"):
        return None
    changes = frozenset(name for one in targets for name in changed(one)) - {"self"}
    uses = frozenset(name for one in values for name in used(one))
    end = last.end_lineno or node.lineno
    return Statement(node.lineno, end, changes, uses, type(node))


def inside(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements in a function, but not those of functions in it."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(part, ast.stmt):
            yield part
        yield from inside(part)


@lru_cache(maxsize=64)
def functions(path: str) -> Sequence[Function]:
    """Return the functions of a file below the import path, or none if it cannot be read."""
    found = list[Function]()

    def visit(node: ast.AST, within: str) -> None:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                given = part.args
                names = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
                own = sorted(filter(None, map(statement, inside(part))), key=lambda one: one.first)
                name, last = f"{within}{part.name}", part.end_lineno or part.lineno
                parameters = frozenset(names - {"self", "cls"})
                first = min(one.lineno for one in (part, *part.decorator_list))
                found.append(Function(name, first, last, parameters, tuple(own)))
            named = isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            visit(part, f"{within}{part.name}." if named else within)  # type: ignore[attr-defined]

    try:
        visit(ast.parse("".join(lines_in(path))), "")
    except (SyntaxError, ValueError):
        return ()
    return found


def lines_in(path: str) -> list[str]:
    """Return the lines of a file of an engine, or no lines if it cannot be read."""
    folders = (Path(folder or ".", path) for folder in sys.path)
    found = FILES.get(path) or next((str(file) for file in folders if file.is_file()), "")
    return linecache.getlines(found)


def text_of(line: str) -> str:
    """Return the text of a line of the engine's source, or '' if it cannot be read."""
    path, number, _ = split(line)
    return "".join(lines_in(path)[number - 1 : number])


def function_at(path: str, line: int) -> Function | None:
    """Return the innermost function with a line of a file, or None."""
    around = [one for one in functions(path) if one.first <= line <= one.last]
    return max(around, key=lambda one: one.first, default=None)


def statement_at(function: Function | None, line: int) -> Statement | None:
    """Return the statement of a function with a line, or None."""
    mine = () if function is None else function.statements
    return next((one for one in mine if one.first <= line <= one.last), None)


def names_at(line: str) -> frozenset[str]:
    """Return the names in the statement of a line, also those of attributes."""
    path, number, _ = split(line)
    mine = statement_at(function_at(path, number), number)
    names = frozenset() if mine is None else mine.changes | mine.uses
    return frozenset(name.removeprefix(".") for name in names)


def calls_in(path: str, one: Statement | Function) -> list[CodeType]:
    """Return the functions that the lines of a statement or a function have called."""
    lines = range(one.first, one.last + 1)
    return [code for line in lines for code in CALLED.get((path, line), {}).values()]


@lru_cache(maxsize=256)
def origins(lines: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the functions whose results the innermost lines use, and those that set attributes.

    The statements before each line are followed backwards, from what it uses. What comes from a
    parameter is followed in the caller.
    """
    package = lines[0].partition("/")[0]
    chain = {split(one)[2] for one in lines}
    results, attributes = dict.fromkeys(chain), dict[tuple[str, str], None]()
    for line in lines:
        path, number, _ = split(line)
        if (function := function_at(path, number)) is None:
            break
        mine = statement_at(function, number)
        begins = number == function.first  # All of the function is meant.
        seeds = [mine] if mine is not None else [*function.statements] if begins else []
        names = used_by(path, function, seeds, package, results, attributes)
        if names.isdisjoint(function.parameters):
            break
    ran = {name_of(code) for called in CALLED.values() for code in called.values()}
    setters = dict[str, None]()
    for path, name in attributes:
        for function in functions(path):
            sets = any(name in one.changes for one in function.statements)
            if sets and not function.name.endswith("__init__"):
                setters[function.name] = None
    others = [one for one in setters if one not in results]
    others.sort(key=lambda one: one not in ran)
    return few(one for one in results if one not in chain), few(others)


def setting(words: Iterable[str], package: str) -> list[str]:
    """Return functions of an engine that were called, and that assign to names with some words."""
    found, wanted = dict[str, None](), tuple(words)
    codes = {id(code): code for called in CALLED.values() for code in called.values()}
    for code in codes.values():
        path = engine_file(code.co_filename, package) or ""
        given = function_at(path, code.co_firstlineno)
        names = (name for one in given.statements for name in one.changes) if given else ()
        if any(name.removeprefix(".").startswith(wanted) for name in names):
            found[name_of(code)] = None
    return few(found)


def few(names: Iterable[str]) -> list[str]:
    """Return the first functions, at most MOST of different names: methods count once."""
    found = list[str]()
    for name in names:
        found.append(name)
        if len({one.rpartition(".")[2] for one in found}) > MOST:
            return found[:-1]
    return found


def used_by(
    path: str,
    function: Function,
    seeds: Sequence[Statement],
    package: str,
    results: dict[str, None],
    attributes: dict[tuple[str, str], None],
    depth: int = 1,
) -> set[str]:
    """Return the names on which some statements of a function depend.

    Add the functions whose results they use to `results`, and the attributes with their files.
    Calls in these functions are followed, too, from what they return, and from what they write to
    their parameters.
    """
    names, calls = set[str](), list[CodeType]()
    for one in reversed(function.statements):
        if one in seeds or not names.isdisjoint(one.changes):
            names |= one.uses
            calls += calls_in(path, one)
    new = [code for code in calls if name_of(code) not in results] if depth >= 0 else []
    results |= dict.fromkeys(map(name_of, new))
    for code in new:
        called = engine_file(code.co_filename, package) or ""
        given = function_at(called, code.co_firstlineno)
        if given is not None:
            used_by(called, given, given.ends, package, results, attributes, depth - 1)
    attributes |= {(path, name): None for name in names if name.startswith(".")}
    return names
