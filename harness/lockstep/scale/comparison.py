"""Compares two arenas in one pass: the number of differences and the first of them.

Each slot has a mark that says whether its differences count. On CUDA, one kernel reads each byte
once. On a CPU, one plane of K or V is compared at a time, so no mask is as large as the arenas.
"""

import importlib
from dataclasses import dataclass

import torch
from paritybit.harness.lockstep.bits import bits
from torch import Tensor

OUTSIDE, IN_FRAME, RESERVED = range(3)
"""Marks of slots: outside the frame, in the frame, and reserved (not compared)."""

NOWHERE = 2**62
"""The place of the first difference if nothing differs."""


@dataclass(frozen=True)
class Difference:
    """The differences of two arenas [layers, 2, slots, heads, dim], as tensors on their device.

    - `found`, int64 [4]: the number of elements that differ, the number of those outside the
      frame, and the flat index of the first of each kind, or NOWHERE.
    - `held`, int64 [2, 2]: the bits of both arenas at these two indices.
    """

    found: Tensor
    held: Tensor
    shape: torch.Size

    @property
    def anywhere(self) -> Tensor:
        """Whether any compared element differs, bool []."""
        return self.found[0] > 0

    @property
    def outside(self) -> Tensor:
        """Whether any element differs outside the frame, bool []."""
        return self.found[1] > 0

    def first(self, *, outside: bool = False) -> tuple[int, ...]:
        """Return the index of the first difference: layer place, plane, slot, head, element.

        Raises ValueError if there is none.
        """
        place = int(self.found[2 + outside])
        if place == NOWHERE:
            raise ValueError("the two arenas do not differ")
        index: list[int] = []
        for size in reversed(self.shape):
            place, rest = divmod(place, size)
            index.append(rest)
        return tuple(reversed(index))

    def hex_bits(self, width: int) -> tuple[str, str]:
        """Return the bits of both arenas at the first difference. `width` is bytes per element."""
        one, other = (
            f"0x{value & (256**width - 1):0{2 * width}x}" for value in self.held[0].tolist()
        )
        return one, other


def compare(one: Tensor, other: Tensor, marks: Tensor) -> Difference:
    """Compare two arenas [layers, 2, slots, heads, dim] of one dtype; `marks` is uint8 [slots]."""
    left, right = bits(one).view(-1), bits(other).view(-1)
    if one.is_cuda:
        found = compared_on_device(left, right, marks, one.shape)
    else:
        found = compared_by_plane(left, right, marks, one.shape)
    places = found[2:].clamp(max=one.numel() - 1)
    held = torch.stack([left[places], right[places]], 1).to(torch.int64)
    return Difference(found, held, one.shape)


def compared_on_device(left: Tensor, right: Tensor, marks: Tensor, shape: torch.Size) -> Tensor:
    """Compute `Difference.found` in one kernel launch."""
    # Imported late: importing Triton decides whether its interpreter is used.
    kernel = importlib.import_module("paritybit.harness.lockstep.scale.kernel")
    found = torch.tensor([0, 0, NOWHERE, NOWHERE], device=left.device)
    left_words, right_words = in_words(left), in_words(right)
    if left_words.dtype != right_words.dtype:  # Only one of them starts inside a word.
        left_words, right_words = left, right
    grid = (-(-left_words.numel() // kernel.BLOCK),)
    kernel.compare_kernel[grid](
        left_words,
        right_words,
        left,
        right,
        marks,
        found,
        left_words.numel(),
        left.numel(),
        shape[2],
        shape[3] * shape[4],
        PER_WORD=left.numel() // left_words.numel(),
        BLOCK=kernel.BLOCK,
        num_warps=kernel.WARPS,
    )
    return found


def compared_by_plane(left: Tensor, right: Tensor, marks: Tensor, shape: torch.Size) -> Tensor:
    """Compute `Difference.found`, one plane of K or V at a time."""
    found = [0, 0, NOWHERE, NOWHERE]
    size = shape[2] * shape[3] * shape[4]
    for first in range(0, left.numel(), size):
        one, other = left[first : first + size], right[first : first + size]
        if torch.equal(in_words(one), in_words(other)):
            continue
        different = (one != other).view(shape[2], -1)
        for kind, counted in enumerate((marks != RESERVED, marks == OUTSIDE)):
            places = (different & counted[:, None]).flatten().nonzero()
            found[kind] += len(places)
            if len(places):
                found[2 + kind] = min(found[2 + kind], first + int(places[0, 0]))
    return torch.tensor(found, device=left.device)


def in_words(values: Tensor) -> Tensor:
    """Return integers as 64-bit words if their number allows it. Words are compared fastest."""
    aligned = (values.storage_offset() | values.numel()) * values.element_size() % 8 == 0
    return values.view(torch.int64) if aligned else values


DIGESTED = 2**24
"""The number of elements digested at a time."""


def digests(rows: Tensor) -> Tensor:
    """Return a 64-bit digest for each row of integers [N, W], int64 [N].

    Each element is multiplied by its own odd number, modulo 2^64. Rows that differ in one element
    always have different digests. Rows that differ in more collide with probability 2^-64.
    """
    width = rows.shape[1]
    odd = torch.arange(width, device=rows.device) * 0x1E3779B97F4A7C15 | 1
    made = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    step = max(1, DIGESTED // width)
    for first in range(0, len(rows), step):
        made[first : first + step] = (rows[first : first + step].to(torch.int64) * odd).sum(1)
    return made
