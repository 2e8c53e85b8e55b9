"""What a captured graph offers, whatever device it was captured on."""

from typing import Protocol


class Graph(Protocol):
    """Captured device work. `operations` are the ops it called through the op interface."""

    operations: list[str]

    def replay(self) -> None:
        """Run the captured work again, into the same storages."""
        ...


class UncapturableError(RuntimeError):
    """An op that a graph cannot record."""
