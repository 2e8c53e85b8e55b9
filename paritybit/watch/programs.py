"""Reads which names the statements of a function change and use.

The name of an attribute begins with a dot, or with `self.`.
"""

import ast
import inspect
import linecache
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import CodeType

MUTATORS = frozenset(
    (
        *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert"),
        *("pop", "popitem", "popleft", "remove", "setdefault", "sort", "update"),
    )
)
"""Methods of containers that change them. Those of tensors end with an underscore."""

OWN = ("self", "cls")


@dataclass(frozen=True)
class Argument:
    """What a call gives to its parameters: the names that each uses."""

    function: str
    positional: tuple[frozenset[str], ...]
    named: Mapping[str | None, frozenset[str]]
    starred: bool


@dataclass(frozen=True, eq=False)
class Statement:
    """The lines of a statement or its head, the names that it changes and uses, and its calls.

    `given` are names that it may change because it gives them to a call whose result is not used.
    The head of an `if` or a loop changes what its body changes. `targets` are those of a loop.
    """

    first: int
    last: int
    changes: frozenset[str]
    given: frozenset[str]
    uses: frozenset[str]
    calls: tuple[Argument, ...]
    returns: bool
    head: bool
    targets: frozenset[str]


@dataclass(frozen=True, eq=False)
class Function:
    """The code of a function, its parameters in order, and its statements in order."""

    code: CodeType
    parameters: tuple[str, ...]
    statements: tuple[Statement, ...]

    @cached_property
    def altering(self) -> list[tuple[Statement, str]]:
        """The statements that may change a part of a parameter, or in a loop a part of a part."""
        parts, found = {name: {name} for name in self.parameters}, []
        for one in self.statements:
            whole = {part for name in one.uses for part in parts.get(name, ())}
            calls = {call.function for call in one.calls}
            if one.targets and whole:
                parts |= dict.fromkeys(one.targets, whole)
            elif not one.head:
                changes = one.changes | one.given
                found += [(one, part) for name in changes for part in parts.get(name, ())]
                if self.kernel and not calls & {"load", "store"}:  # An offset from a pointer.
                    parts |= dict.fromkeys(one.changes, whole)
        return found

    @cached_property
    def kernel(self) -> bool:
        """Whether it stores to pointers, as a Triton kernel does."""
        return any(call.function == "store" for one in self.statements for call in one.calls)

    @cached_property
    def attributes(self) -> frozenset[str]:
        """The attributes that it may change."""
        names = (name for one in self.statements for name in one.changes | one.given)
        return frozenset(name for name in names if "." in name)

    @property
    def plain(self) -> bool:
        """Whether it only stores what it is given."""
        given = frozenset(self.parameters)
        return all(one.uses <= given and not (one.calls or one.returns) for one in self.statements)

    @property
    def ends(self) -> list[Statement]:
        """The statements that return or change a parameter, or else an attribute."""
        found = [one for one in self.statements if one.returns]
        found += [one for one, _ in self.altering]
        return found or [one for one in self.statements if any("." in name for name in one.changes)]

    def at(self, line: int) -> list[Statement]:
        """Return the innermost statement with a line, or all if it is the function's first line."""
        if line == self.code.co_firstlineno:
            return list(self.statements)
        return [one for one in self.statements if one.first <= line <= one.last][-1:]


def used(node: ast.AST | None) -> Iterator[str]:
    """Yield the names and attributes whose values an expression uses."""
    if isinstance(node, ast.Call):
        function = node.func
        yield from used(function.value) if isinstance(function, ast.Attribute) else ()
        for part in (*node.args, *(one.value for one in node.keywords)):
            yield from used(part)
    elif isinstance(node, ast.Name):
        yield from () if node.id in OWN else (node.id,)
    elif isinstance(node, ast.Attribute):
        yield attribute(node)
        yield from used(node.value)
    elif node is not None:
        for child in ast.iter_child_nodes(node):
            yield from used(child)


def attribute(node: ast.Attribute) -> str:
    """Return the name of an attribute."""
    own = isinstance(node.value, ast.Name) and node.value.id in OWN
    return f"self.{node.attr}" if own else f".{node.attr}"


def changed(node: ast.AST) -> Iterator[str]:
    """Yield what an assignment changes."""
    if isinstance(node, ast.Name):
        yield from () if node.id in OWN else (node.id,)
    elif isinstance(node, ast.Attribute):
        yield attribute(node)
        yield from inner(node.value) if isinstance(node.value, ast.Attribute) else ()
    elif isinstance(node, ast.Subscript):
        yield from inner(node.value)
    elif isinstance(node, ast.Starred):
        yield from changed(node.value)
    elif isinstance(node, ast.Tuple | ast.List):
        for part in node.elts:
            yield from changed(part)


def inner(node: ast.AST) -> Iterator[str]:
    """Yield what is changed if a part of an expression's value is."""
    while isinstance(node, ast.Call | ast.Subscript):  # `x[0].view(-1)` is a part of `x`.
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute):
                return
            node = node.func
        node = node.value
    yield from changed(node)


def effects(call: ast.Call, alone: bool) -> Iterator[str]:
    """Yield what a call changes. `alone` says that nothing uses its result.

    One with keywords that makes an object sets its attributes.
    """
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if stores(call):
        yield from used(call.args[0])
        return
    mutates = method in MUTATORS or (method.endswith("_") and not method.endswith("__"))
    if isinstance(call.func, ast.Attribute) and (mutates or alone):
        yield from inner(call.func.value)
    name = method or getattr(call.func, "id", "")
    if name.lstrip("_")[:1].isupper() or name in ("cls", "replace", "_replace"):
        yield from (f".{one.arg}" for one in call.keywords if one.arg)


def stores(node: ast.AST | None) -> bool:
    """Return whether an expression is a call that stores to a pointer in a Triton kernel."""
    method = getattr(getattr(node, "func", None), "attr", "")
    return bool(getattr(node, "args", ())) and (method == "store" or method.startswith("atomic_"))


def heads(node: ast.stmt) -> tuple[list[ast.expr], list[ast.expr]]:
    """Return the targets of a statement, and the expressions of it or of its head."""
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.target], [node.iter]
    if isinstance(node, ast.With | ast.AsyncWith):
        targets = [one.optional_vars for one in node.items if one.optional_vars is not None]
        return targets, [one.context_expr for one in node.items]
    if isinstance(node, ast.If | ast.While):
        return [], [node.test]
    if isinstance(node, ast.AugAssign):
        return [node.target], [node.target, node.value]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        within = (part for one in targets for part in ast.walk(one))
        places = [part.slice for part in within if isinstance(part, ast.Subscript)]
        return targets, [*places, *([node.value] if node.value is not None else [])]
    return [], [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]


def statements(body: Iterable[ast.AST]) -> Iterator[Statement]:
    """Yield the statements in a function, but not those of functions in it."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not isinstance(node, ast.stmt):  # Such as an exception handler.
            yield from statements(ast.iter_child_nodes(node))
            continue
        targets, values = heads(node)
        changes = {name for one in targets for name in changed(one)}
        calls = [two for one in values for two in ast.walk(one) if isinstance(two, ast.Call)]
        alone = node.value if isinstance(node, ast.Expr) else None
        for call in calls:
            changes.update(effects(call, call is alone))
        lent = set[str]()
        if isinstance(alone, ast.Call) and not stores(alone):
            for part in (*alone.args, *(one.value for one in alone.keywords)):
                lent.update(inner(part))
        within = list(statements(ast.iter_child_nodes(node)))
        changes.update(name for one in within for name in one.changes)
        lent.update(name for one in within for name in one.given)
        uses = frozenset(name for one in values for name in used(one))
        last = max((one.end_lineno or 0 for one in values), default=node.lineno)
        returns = isinstance(node, ast.Return) or any(
            isinstance(one, ast.Yield | ast.YieldFrom) for part in values for one in ast.walk(part)
        )
        if values:
            names = frozenset(changes), frozenset(lent - changes), uses
            given = tuple(map(argument, calls))
            loops = isinstance(node, ast.For | ast.AsyncFor)
            own = frozenset(name for one in targets for name in changed(one)) if loops else ()
            head = bool(within), frozenset(own)
            yield Statement(node.lineno, last, *names, given, returns, *head)
        yield from within


def argument(call: ast.Call) -> Argument:
    """Return what a call gives to its parameters. `kernel[grid](x)` calls `kernel`."""
    function = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    named = {one.arg: frozenset(used(one.value)) for one in call.keywords}
    starred = any(isinstance(one, ast.Starred) for one in call.args)
    return Argument(name, tuple(frozenset(used(one)) for one in call.args), named, starred)


PARSED: dict[int, tuple[CodeType, Function | None]] = {}
"""What the source of functions says, by the ids of their code. Equal code may be of other files."""


def function_of(code: CodeType) -> Function | None:
    """Return what the source of a function says, or None if it cannot be read."""
    if id(code) not in PARSED:
        PARSED[id(code)] = code, parsed(code)
    return PARSED[id(code)][1]


def parsed(code: CodeType) -> Function | None:
    """Read the source of a function."""
    first = code.co_firstlineno
    lines = linecache.getlines(code.co_filename)[first - 1 :]
    try:
        (node,) = ast.parse(textwrap.dedent("".join(inspect.getblock(lines)))).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    ast.increment_lineno(node, first - 1)
    given = node.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    parameters = tuple(one for one in names if one not in OWN)
    return Function(code, parameters, tuple(statements(node.body)))


@lru_cache(maxsize=16384)
def mentioned(code: CodeType) -> frozenset[str]:
    """Return the attributes and the constant names in a function, and in those within it."""
    found = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, str):
            found.add(one)
        elif isinstance(one, tuple):  # The names of keywords.
            found.update(name for name in one if isinstance(name, str))
        elif isinstance(one, CodeType):
            found |= mentioned(one)
    return frozenset(found)
