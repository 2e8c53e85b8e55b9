"""A copy of the bytes of a group's slots, to find the slots that changed.

A comparison of bytes takes less time on a CPU than a checksum, and it is exact.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from paritybit.watch.bits import Checksums

LARGEST = 2**28
"""The most bytes of a group that are copied."""


class Shadow:
    """The words of all slots of a group, as they were at the last `update`."""

    def __init__(self, checksums: Checksums) -> None:
        self.checksums = checksums
        self.copies = [words.clone() for words in checksums.every()]

    @classmethod
    def of(cls, checksums: Checksums) -> "Shadow | None":
        """Return the shadow of a group, or None if it is too large, empty or not on a CPU."""
        sizes = [tensor.nbytes for tensor in checksums.tensors]
        on_cpu = all(tensor.device.type == "cpu" for tensor in checksums.tensors)
        return cls(checksums) if on_cpu and min(sizes) > 0 and sum(sizes) <= LARGEST else None

    def same(self) -> bool:
        """Return whether no slot changed since the last update. Raises ReleasedError."""
        return all(map(torch.equal, self.copies, self.checksums.every()))

    def changed(self) -> Tensor:
        """Return which slots changed since the last update, bool [slots]. Raises ReleasedError."""
        found = torch.zeros(self.checksums.slots, dtype=torch.bool)
        for copy, words in zip(self.copies, self.checksums.every(), strict=True):
            if not torch.equal(copy, words):
                found |= (copy != words).any(1)
        return found

    def update(self, slots: Tensor, words: Sequence[Tensor]) -> None:
        """Store the words of some slots, int64 [n]. `words` has [n, words] for each tensor."""
        for copy, mine in zip(self.copies, words, strict=True):
            copy.index_copy_(0, slots, mine)
