"""KV of an engine read in a world's layout and slot numbers, and written, through a bijection."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torch import Tensor


class PairedKV(ABC):
    """A world's storage and an engine's, of which every place has one counterpart."""

    @abstractmethod
    def _planes(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield K or V of each layer: the world's, the engine's, the bijection of their places."""

    def write_kv(self) -> None:
        """Give every place of the engine the bytes of its counterpart in the world's storage."""
        for plane, buffer, places in self._planes():
            buffer[places] = plane

    def read_kv(self) -> None:
        """Give every place of the world's storage the bytes of its counterpart in the engine."""
        for plane, buffer, places in self._planes():
            plane.copy_(buffer[places])
