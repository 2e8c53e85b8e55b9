"""What any comparison of two arenas must find, as checks that raise `AssertionError`.

Run on the CPU's comparison, and on the kernel: compiled where CUDA is, else interpreted.
"""

from collections.abc import Callable
from itertools import product

import torch
from paritybit.harness.lockstep.scale.comparison import IN_FRAME, NOWHERE, OUTSIDE, RESERVED
from torch import Tensor

Compare = Callable[[Tensor, Tensor, Tensor, torch.Size], Tensor]
"""Returns what `Difference.found` is, of two flat arenas of integers, marks and their shape."""

SHAPE = torch.Size((3, 2, 37, 5, 20))
"""Of an arena whose planes, slots and rows end within a block; two blocks and a part of it."""

MARKS = {0: RESERVED, 4: IN_FRAME, 36: IN_FRAME}

PLANTED: dict[str, tuple[tuple[tuple[int, ...], ...], tuple[int, int, int, int]]] = {
    "nothing": ((), (0, 0, NOWHERE, NOWHERE)),
    "the reserved slot": (((1, 1, 0, 0, 0), (2, 0, 0, 4, 19)), (0, 0, NOWHERE, NOWHERE)),
    "the frame": (((0, 1, 4, 0, 3),), (1, 0, 4103, NOWHERE)),
    "the last element, in the frame": (((2, 1, 36, 4, 19),), (1, 0, 22199, NOWHERE)),
    "the first element compared": (((0, 0, 1, 0, 0),), (1, 1, 100, 100)),
    "the frame, then elsewhere": (((0, 0, 4, 1, 1), (2, 1, 35, 0, 0)), (2, 1, 421, 22000)),
    "elsewhere, then the frame": (((1, 0, 3, 0, 0), (1, 0, 4, 0, 0)), (2, 1, 7700, 7700)),
}
"""Where one of two equal arenas is changed, and what must be found: see `Difference.found`."""


def check_comparisons(compare: Compare, device: str) -> None:
    """Check what is found of each planted difference, in elements of 16 bits and of 32.

    Once both arenas begin at a word of 64 bits, once both within one, and once one of them does.
    """
    marks = torch.full((SHAPE[2],), OUTSIDE, dtype=torch.uint8, device=device)
    for slot, mark in MARKS.items():
        marks[slot] = mark
    for dtype, begins in product((torch.int16, torch.int32), ((0, 0), (1, 1), (0, 1))):
        generator = torch.Generator().manual_seed(0)
        held = torch.randint(-(2**15), 2**15, SHAPE, generator=generator).to(device, dtype)
        for name, (places, expected) in PLANTED.items():
            one, other = (beginning_at(begin, held) for begin in begins)
            for place in places:
                other[place] ^= 1
            found = compare(one.view(-1), other.view(-1), marks, SHAPE).tolist()
            if tuple(found) != expected:
                raise AssertionError(
                    f"{name}, {dtype}, {begins}: {found} was found, not {list(expected)}"
                )


def beginning_at(begin: int, values: Tensor) -> Tensor:
    """Return a copy of some values that begins so many elements into its memory."""
    memory = torch.empty(begin + values.numel(), dtype=values.dtype, device=values.device)
    return memory[begin:].copy_(values.flatten()).view(values.shape)
