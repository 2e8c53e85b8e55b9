"""Objects with declared values, which reject every other name that an engine reads."""

from collections.abc import Mapping
from typing import Any

from paritybit.engines.missing import UndeclaredError


class Bag:
    """An object with declared values. Any other name raises UndeclaredError."""

    def __init__(self, values: Mapping[str, Any], label: str) -> None:
        self.__dict__.update(values)
        self._label = label

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UndeclaredError(f"the engine reads {self._label}.{name}, which is not declared")
