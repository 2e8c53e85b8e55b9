"""Tensors that must be alike in every bit, and how a kernel is told which ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from paritybit.harness.checks.device.host_arrays import Numbers
from paritybit.harness.lockstep.bits import any_set, differ, same, unequal
from torch import Tensor

WHOLE = frozenset({torch.int32, torch.int64})
"""Dtypes of which a kernel compares one with another as a copy would convert it."""

ENTRY = 9
"""Numbers that say of a pair where it lies, in which form, and where its answer is."""

Pairs = Sequence[tuple[Tensor, Tensor]]
"""Pairs of tensors, the two of each of one shape."""


@dataclass(frozen=True)
class Unequal:
    """The flag that the tensors of some pair differ in any bit: they are compared when it is read.

    There is at least one pair, and all are on one device. The second tensor of a pair is first
    converted to the dtype of the first one. With `compared`, a bool mask of the shape of all these
    tensors, only the elements where it is set are compared; mask and tensors are contiguous.
    """

    pairs: Pairs
    compared: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.pairs[0][0].device

    def __bool__(self) -> bool:
        """Whether it is raised."""
        alike = [(one, as_dtype(other, one.dtype)) for one, other in self.pairs]
        if self.compared is not None:
            masks = [unequal(*pair).logical_and_(self.compared) for pair in alike]
            return any(any_set(mask) for mask in masks)
        if self.device.type == "cpu":
            return not all(same(*pair) for pair in alike)
        return bool(differ(alike))


def as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values in a dtype: themselves where they have it."""
    return values if values.dtype is dtype else values.to(dtype)


@dataclass(frozen=True)
class Entries:
    """What a kernel is told of pairs: an entry of ENTRY numbers for each, in 64 bits.

    `most` are the elements of the longest. Nobody may free `held` before the kernel was launched.
    """

    numbers: Numbers
    most: int
    held: list[Tensor]

    @property
    def count(self) -> int:
        """How many pairs there are."""
        return self.numbers.size // (2 * ENTRY)


def entries_of(flags: Sequence[Unequal]) -> Entries:
    """Return the entries of all pairs of some flags: where both lie, how many elements, which form.

    The last number of each is which of the flags it is of.
    """
    entries, held, most = list[int](), list[Tensor](), 0
    for number, flag in enumerate(flags):
        compared = 0 if flag.compared is None else flag.compared.data_ptr()
        for pair in flag.pairs:
            count = pair[0].numel()
            if count:
                one, other, *form = in_rows(*pair, count)
                held += one, other
                most = max(most, count)
                sizes = one.element_size() << 4 | other.element_size()
                entries += one.data_ptr(), other.data_ptr(), count, *form, sizes, compared, number
    return Entries(np.array(entries, dtype=np.int64).view(np.int32), most, held)


def in_rows(one: Tensor, other: Tensor, count: int) -> tuple[Tensor, Tensor, int, int, int]:
    """Return two tensors as they lie in rows: how long a row is, and how far apart rows lie."""
    if one.dtype is not other.dtype and not (one.dtype in WHOLE and other.dtype in WHOLE):
        other = other.to(one.dtype)
    if one.is_contiguous() and other.is_contiguous():
        return one, other, count, 0, 0
    if one.ndim == 2 and one.stride(1) == other.stride(1) == 1:
        return one, other, one.shape[1], one.stride(0), other.stride(0)
    return one.contiguous(), other.contiguous(), count, 0, 0
