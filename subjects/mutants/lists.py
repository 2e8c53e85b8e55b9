"""Mistakes with one static list of attention metadata, before the correct `StaticLists`."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from paritybit.subjects.buffers import BufferPool
from paritybit.subjects.key_lists import Lists, StaticLists
from torch import Tensor


class MistakenLists(StaticLists):
    """Makes a mistake with the list `mutated`."""

    mutated: ClassVar[str]

    def write(self, values: Lists) -> None:
        """Write all lists correctly except the mutated one."""
        right = {name: listed for name, listed in values.items() if name != self.mutated}
        mistaken = self.mistaken(values[self.mutated])
        super().write(right if mistaken is None else {**right, self.mutated: mistaken})

    def mistaken(self, values: Tensor) -> Tensor | None:
        """Return the values to write for a list. None to write nothing."""
        return values


class ListCopiedOneShort(MistakenLists):
    """Writes all but the last value."""

    def mistaken(self, values: Tensor) -> Tensor | None:
        """Leave the last value out."""
        return values[:-1]


class ListLateByOne(MistakenLists):
    """Writes the values of the previous replay."""

    latest: Tensor | None = None

    def mistaken(self, values: Tensor) -> Tensor | None:
        """Return the previous replay's values."""
        late, self.latest = self.latest, values.clone()
        return late


class ListFrozenAtCapture(MistakenLists):
    """Writes the values of the first capture, and nothing after it."""

    written = False

    def mistaken(self, values: Tensor) -> Tensor | None:
        """Write only once."""
        first, self.written = not self.written, True
        return values if first else None


class ListRebound(MistakenLists):
    """Rebinds the list to a new tensor in every replay."""

    def mistaken(self, values: Tensor) -> Tensor | None:
        """Rebind the list, and write to the new tensor."""
        self.buffers[self.mutated] = self.buffers[self.mutated].clone()
        return values


class ListOfWrongDtype(MistakenLists):
    """Has another dtype."""

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
"""The wrong dtype for each dtype. None is the model's."""
