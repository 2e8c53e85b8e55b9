"""Pairs of tensors that must have equal bits, and their description for a kernel."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from paritybit.harness.checks.device.host_arrays import Numbers
from paritybit.harness.lockstep.bits import any_set, differ, same, unequal
from torch import Tensor

WHOLE = frozenset({torch.int32, torch.int64})
"""Dtypes that a kernel can compare with each other, with the conversion of a copy."""

ENTRY = 9
"""Numbers that describe a pair: addresses, layout, and the place of the answer."""

Pairs = Sequence[tuple[Tensor, Tensor]]
"""Pairs of tensors with equal shapes."""


@dataclass(frozen=True)
class Unequal:
    """A flag that is set if the tensors of any pair differ. They are compared when it is read.

    There is at least one pair, and all are on one device. The second tensor of a pair is converted
    to the dtype of the first. If `compared` is given, a bool mask with the shape of all tensors,
    only its elements are compared; mask and tensors must be contiguous.
    """

    pairs: Pairs
    compared: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.pairs[0][0].device

    def __bool__(self) -> bool:
        """Whether the flag is set."""
        alike = [(one, as_dtype(other, one.dtype)) for one, other in self.pairs]
        if self.compared is not None:
            masks = [unequal(*pair).logical_and_(self.compared) for pair in alike]
            return any(any_set(mask) for mask in masks)
        if self.device.type == "cpu":
            return not all(same(*pair) for pair in alike)
        return bool(differ(alike))


def as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values converted to a dtype."""
    return values if values.dtype is dtype else values.to(dtype)


@dataclass(frozen=True)
class Entries:
    """The description of pairs for a kernel: ENTRY 64-bit numbers per pair.

    `most` is the largest number of elements. `held` must stay alive until the kernel was launched.
    """

    numbers: Numbers
    most: int
    held: list[Tensor]

    @property
    def count(self) -> int:
        """The number of pairs."""
        return self.numbers.size // (2 * ENTRY)


def entries_of(flags: Sequence[Unequal]) -> Entries:
    """Return the entries of all pairs: addresses, number of elements, layout, and flag number."""
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
    """Return two tensors as rows, with the length of a row and the distances between rows."""
    if one.dtype is not other.dtype and not (one.dtype in WHOLE and other.dtype in WHOLE):
        other = other.to(one.dtype)
    if one.is_contiguous() and other.is_contiguous():
        return one, other, count, 0, 0
    if one.ndim == 2 and one.stride(1) == other.stride(1) == 1:
        return one, other, one.shape[1], one.stride(0), other.stride(0)
    return one.contiguous(), other.contiguous(), count, 0, 0
