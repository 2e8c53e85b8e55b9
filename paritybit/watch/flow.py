"""Finds the functions whose results a statement uses, within one function of an engine."""

import ast
import linecache
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

MOST = 4
"""The most functions that are returned."""


@dataclass(frozen=True)
class Statement:
    """The lines of a simple statement, the names to which it assigns, and all of its names."""

    first: int
    last: int
    targets: frozenset[str]
    names: frozenset[str]


def names_in(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Return the names and the attributes in some nodes."""
    every = [one for node in nodes for one in ast.walk(node)]
    names = {one.id for one in every if isinstance(one, ast.Name)}
    return frozenset(names | {one.attr for one in every if isinstance(one, ast.Attribute)})


@lru_cache(maxsize=64)
def statements(path: str) -> Sequence[Statement]:
    """Return the simple statements of a file, or none if it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ()
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or hasattr(node, "body"):
            continue
        given = [*getattr(node, "targets", ()), getattr(node, "target", None)]
        targets = names_in(one for one in given if isinstance(one, ast.AST))
        last = node.end_lineno or node.lineno
        found.append(Statement(node.lineno, last, targets - {"self"}, names_in([node])))
    return found


def at(path: str, line: int) -> Statement | None:
    """Return the statement with a line of a file, or None if there is none."""
    return next((one for one in statements(path) if one.first <= line <= one.last), None)


@lru_cache(maxsize=256)
def sources(path: str, line: int, calls: tuple[tuple[int, str], ...]) -> list[str]:
    """Return the functions whose results the statement at a line uses, the nearest first.

    `calls` are the calls that the same function made before: the line and the name of each, in
    order. A result is followed by the names to which it is assigned.
    """
    mine = at(path, line)
    if mine is None:
        return []
    names, found = set(mine.names), dict[str, None]()
    for place, called in reversed(calls):
        made = at(path, place)
        if made is not None and (made == mine or not names.isdisjoint(made.targets)):
            found[called] = None
            names |= made.names - {"self"}
    return list(found)[:MOST]
