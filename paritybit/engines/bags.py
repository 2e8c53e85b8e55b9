"""Bags of declared settings, which refuse every other name that an engine asks for.

What is declared of an engine stands in a file of its own, `declared.toml`. There a list under one
of these words declares that value of every name in it: `None`, `False`, `0`, `1`, and of names
that are called and answer so, `None()` and `False()`. A table in a table is an object.
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from paritybit.compat import tomllib
from paritybit.engines.missing import UndeclaredError

WORDS: Mapping[str, Any] = {
    "None": None,
    "False": False,
    "0": 0,
    "1": 1,
    "None()": lambda *arguments: None,
    "False()": lambda *arguments: False,
}
"""What names are declared to be that stand in a list under a word."""


def declared_in(file: Path) -> dict[str, Any]:
    """Return what a file declares; each table of its table `off` holds what a bag does."""
    found = tomllib.loads(file.read_text())
    found["off"] = {label: settings(table) for label, table in found["off"].items()}
    return found


def settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all names of a table. Raises ValueError for one that stands twice."""
    found = dict[str, Any]()
    for key, held in table.items():
        if key in WORDS:
            more = dict.fromkeys(held, WORDS[key])
        elif isinstance(held, dict):
            more = {key: SimpleNamespace(**settings(held))}
        else:
            more = {key: held}
        if twice := found.keys() & more.keys():
            raise ValueError(f"declared twice: {', '.join(sorted(twice))}")
        found |= more
    return found


class Bag:
    """An object with declared values. Any other name raises UndeclaredError."""

    def __init__(self, values: Mapping[str, Any], label: str) -> None:
        self.__dict__.update(values)
        self._label = label

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UndeclaredError(f"the engine reads {self._label}.{name}, which is not declared")
