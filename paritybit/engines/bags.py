"""Objects with declared settings, which reject every other name that an engine reads.

A file `declared.toml` has the declarations for an engine. A list under one of the words `None`,
`False`, `0` or `1` declares this value for every name in the list. `None()` and `False()` declare
functions that return the value. A table in a table is an object.
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
"""The values of the words for lists of names."""


def declared_in(file: Path) -> dict[str, Any]:
    """Return the declarations in a file. The tables in `off` are converted by `settings`."""
    found = tomllib.loads(file.read_text())
    found["off"] = {label: settings(table) for label, table in found["off"].items()}
    return found


def settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all names in a table. Raises ValueError for a duplicate name."""
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
