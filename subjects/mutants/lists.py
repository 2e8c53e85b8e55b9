"""Mistakes with one static list of attention metadata: classes before the right `StaticLists`."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from paritybit.subjects.buffers import BufferPool
from paritybit.subjects.key_lists import Lists, StaticLists
from torch import Tensor


class MistakenLists(StaticLists):
    """Gets the list `mutated` wrong."""

    mutated: ClassVar[str]

    def write(self, values: Lists) -> None:
        """Write the lists as is right, but for the one that is mistaken."""
        right = {name: listed for name, listed in values.items() if name != self.mutated}
        mistaken = self.mistaken(values[self.mutated])
        super().write(right if mistaken is None else {**right, self.mutated: mistaken})

    def mistaken(self, values: Tensor) -> Tensor | None:
        """Return what is written of a list's values, None if nothing is."""
        return values


class ListCopiedOneShort(MistakenLists):
    """Writes all but the last value."""

    def mistaken(self, values: Tensor) -> Tensor | None:
        """Leave the last value out."""
        return values[:-1]


class ListLateByOne(MistakenLists):
    """Writes what the replay before should have had."""

    latest: Tensor | None = None

    def mistaken(self, values: Tensor) -> Tensor | None:
        """Write the last replay's values."""
        late, self.latest = self.latest, values.clone()
        return late


class ListFrozenAtCapture(MistakenLists):
    """Writes what the first capture needs, and nothing after it."""

    written = False

    def mistaken(self, values: Tensor) -> Tensor | None:
        """Write once."""
        first, self.written = not self.written, True
        return values if first else None


class ListRebound(MistakenLists):
    """Is a new tensor in every replay."""

    def mistaken(self, values: Tensor) -> Tensor | None:
        """Take a new tensor, and write to it."""
        self.buffers[self.mutated] = self.buffers[self.mutated].clone()
        return values


class ListOfWrongDtype(MistakenLists):
    """Is of another dtype."""

    def __init__(self, sizes: Mapping[str, tuple[int, torch.dtype]], buffers: BufferPool) -> None:
        size, dtype = sizes[self.mutated]
        super().__init__({**sizes, self.mutated: (size, OTHER_DTYPES[dtype])}, buffers)


OTHER_DTYPES: Mapping[torch.dtype | None, torch.dtype] = {
    torch.int64: torch.int32,
    torch.int32: torch.int64,
    torch.bool: torch.uint8,
    torch.float32: torch.float64,
    None: torch.float64,
}
"""The dtype that is taken for another by mistake; None stands for the model's."""
