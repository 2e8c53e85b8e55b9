"""Reads names from the source of an engine: those in a statement, and what a kernel stores to."""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType

from paritybit.watch.stacks import Stack, engine_file, lines_in, split


@lru_cache(maxsize=256)
def module_of(path: str) -> ast.Module:
    """Return the parsed file of an engine, or an empty module if it cannot be read."""
    try:
        return ast.parse("".join(lines_in(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=4096)
def statement_at(line: str) -> ast.stmt | None:
    """Return the innermost statement with a line of an engine, or None."""
    path, number, _ = split(line)
    found = [
        node
        for node in ast.walk(module_of(path))
        if isinstance(node, ast.stmt) and node.lineno <= number <= (node.end_lineno or 0)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def names_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names of variables and attributes in parts of a program."""
    for node in (two for one in nodes for two in ast.walk(one)):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr


def leading(given: Stack, words: Iterable[str]) -> Stack:
    """Return a stack in which the innermost line leads whose statement has one of some names."""
    wanted = set(words)
    for number, line in enumerate(given.lines):
        if (node := statement_at(line)) is not None and not wanted.isdisjoint(names_in([node])):
            return given._replace(lead=number)
    return given


def changed_at(line: str) -> str | None:
    """Return the name of what a statement assigns to, or of the object whose method it calls."""
    node = statement_at(line)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        target: ast.expr | None = node.value.func
        target = target.value if isinstance(target, ast.Attribute) else None
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    else:
        return None
    while isinstance(target, ast.Subscript | ast.Call):
        target = target.value if isinstance(target, ast.Subscript) else target.func
    return next(names_in([target] if target is not None else []), None)


@lru_cache(maxsize=256)
def stored_by(code: CodeType, package: str) -> dict[str, int]:
    """Return the lines of a Triton kernel that store to the tensors of its parameters, by name."""
    path = engine_file(code.co_filename, package)
    kernel = next(
        (
            node
            for node in ast.walk(module_of(path or ""))
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name
        ),
        None,
    )
    parts = {one.arg: {one.arg} for one in kernel.args.args} if kernel is not None else {}
    found: dict[str, int] = {}
    statements = (one for one in ast.walk(kernel or ast.Module([], [])) if hasattr(one, "lineno"))
    for node in sorted(statements, key=lambda one: one.lineno):
        used = {name for one in names_in([node]) for name in parts.get(one, ())}
        calls = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
        called = {one.rpartition("_")[0] or one for one in names_in(calls)}
        if isinstance(node, ast.Assign | ast.AugAssign) and "load" not in called:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts |= {name: parts.get(name, set()) | used for name in names_in(targets)}
        elif isinstance(node, ast.Call) and node.args and called & {"store", "atomic"}:
            pointer = {name for one in names_in(node.args[:1]) for name in parts.get(one, ())}
            found |= dict.fromkeys(pointer - found.keys(), node.lineno)
    return found
