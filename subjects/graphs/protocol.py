"""The interface of a captured graph on any device."""

from typing import Protocol


class Graph(Protocol):
    """Captured device work. `operations` are the ops that it called through the op interface."""

    operations: list[str]

    def replay(self) -> None:
        """Run the captured work again in the same storages."""
        ...


class UncapturableError(RuntimeError):
    """Raised for an op that a graph cannot record."""
