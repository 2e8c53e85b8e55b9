"""Bags of declared settings, which refuse every other name that an engine asks for."""

from collections.abc import Mapping
from typing import Any

from subjects.engines.shared.missing import UndeclaredError


class Bag:
    """A bag of declared values.

    Any other name raises UndeclaredError; `asked` collects those names.
    """

    def __init__(self, values: Mapping[str, Any], asked: set[str], label: str) -> None:
        self.__dict__.update(values)
        self._asked = asked
        self._label = label

    def set(self, name: str, value: Any) -> None:
        """Declare one more value."""
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        asked = f"{self._label}.{name}"
        self._asked.add(asked)
        raise UndeclaredError(f"the engine asked for {asked}, which is not declared")
