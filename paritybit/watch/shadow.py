"""A copy of the bytes of a group's slots, to find the slots that changed.

A comparison of bytes takes less time on a CPU than a checksum, and it is exact.
"""

from collections.abc import Sequence
from ctypes import c_char

import torch
from torch import Tensor

from paritybit.watch.bits import Checksums, as_integers, words_of

LARGEST = 2**28
"""The most bytes of a group that are copied."""


class Shadow:
    """The bytes of all slots of a group, as they were at the last `update`."""

    def __init__(self, checksums: Checksums) -> None:
        self.slots, self.block = checksums.slots, checksums.block
        self.copies: list[tuple[Tensor, Tensor, bytearray]] = []
        self.rows: list[Tensor] = []
        for tensor in checksums.tensors:
            integers = as_integers(tensor)
            raw = bytearray(tensor.nbytes)
            copied = torch.frombuffer(raw, dtype=integers.dtype).view(tensor.shape)
            copied.copy_(integers)
            self.copies.append((tensor, copied, raw))
            self.rows.append(self._words(copied))

    @classmethod
    def of(cls, checksums: Checksums) -> "Shadow | None":
        """Return the shadow of a group, or None if it is too large, empty or not on a CPU."""
        sizes = [tensor.nbytes for tensor in checksums.tensors]
        on_cpu = all(tensor.device.type == "cpu" for tensor in checksums.tensors)
        return cls(checksums) if on_cpu and min(sizes) > 0 and sum(sizes) <= LARGEST else None

    def same(self) -> bool:
        """Return whether no slot changed since the last update."""
        return all(same(*copied) for copied in self.copies)

    def changed(self) -> Tensor:
        """Return which slots changed since the last update, bool [slots]."""
        found = torch.zeros(self.slots, dtype=torch.bool)
        for (tensor, copied, raw), before in zip(self.copies, self.rows, strict=True):
            if not same(tensor, copied, raw):
                differ = self._words(tensor.contiguous()) != before
                found |= differ[: self.slots].any(1)
        return found

    def update(self, slots: Tensor, words: Sequence[Tensor]) -> None:
        """Store the words of some slots, int64 [n]. `words` has [n, words] for each tensor."""
        for before, mine in zip(self.rows, words, strict=True):
            before.index_copy_(0, slots, mine)

    def _words(self, tensor: Tensor) -> Tensor:
        """Return the words of each slot of a contiguous tensor, [slots, words]."""
        return words_of(tensor if self.block is None else tensor.flatten(0, 1))


def same(tensor: Tensor, copied: Tensor, raw: bytearray) -> bool:
    """Return whether a tensor has the bytes of its copy, whose memory is `raw`."""
    if not tensor.is_contiguous():
        return torch.equal(as_integers(tensor), copied)
    first = tensor.storage_offset() * tensor.element_size()
    if tensor.untyped_storage().nbytes() < first + len(raw):
        raise RuntimeError("the engine released the memory of its KV cache")
    # Python compares bytes several times as fast as torch compares integers.
    live: object = (c_char * len(raw)).from_address(tensor.data_ptr())
    return raw == live
