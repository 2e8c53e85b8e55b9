"""Launching the kernels of `questions`: each answer is a flag on the device, unread by the host."""

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.checks.counted_reads import Block, keys_of
from harness.checks.device.host_arrays import Numbers, on_device
from reference.allocator import Ownership
from subjects.protocol import KeyLists

CELLS = 1024
"""Cells of tables that one program looks at."""

KEYS = 128
"""Keys, and counts, that one program looks at together."""


@cache
def kernels() -> Any:
    """Return the kernels. Imported late: that decides whether Triton's interpreter is used."""
    return importlib.import_module("harness.checks.device.questions")


def with_answer(numbers: Numbers, device: torch.device) -> Tensor:
    """Return numbers on a device, flat, and behind them one for the answer, 0 as yet."""
    asked = np.zeros(numbers.size + 1, dtype=np.int32)
    asked[:-1] = numbers.reshape(-1)
    return on_device(asked, device)


def answer_of(asked: Tensor) -> Tensor:
    """Return the last of some numbers, which is 0 or 1, as a bool []."""
    return asked[-1:].view(torch.bool)[0]


def tables_wrong(worlds: Sequence[Ownership], cells: Numbers) -> Tensor:
    """Return whether a cell of the tables of one world, or of two, is wrong: see `wrong_cells`."""
    tables = [(world.mapping.contiguous(), world.req_to_token.contiguous()) for world in worlds]
    asked, number = with_answer(cells, tables[0][0].device), cells.shape[1]
    kernels().tables_kernel.launch(
        (-(-number // CELLS), 1, 1),
        asked,
        *tables[0],
        *tables[-1],
        tables[0][0].shape[0],
        number,
        WORLDS=len(worlds),
        BLOCK=CELLS,
    )
    return answer_of(asked)


def reads_wrong(keys: KeyLists, blocks: Sequence[Block], right: Numbers, most: int) -> Tensor:
    """Return whether a row reads otherwise than it must, int32 [rows, cells]: see `counted`.

    Of each sub-pool all slots are counted.
    """
    asked = with_answer(right, keys.full.begin.device)
    for block in blocks:
        one = keys_of(keys, block.kind)
        masked = keys.mask is not None and one.mask_start is not None
        mask = asked if keys.mask is None else keys.mask
        kernels().reads_kernel.launch(
            (block.rows, 1, 1),
            asked,
            one.begin.contiguous(),
            one.end.contiguous(),
            one.slots.contiguous(),
            asked if one.mask_start is None else one.mask_start.contiguous(),
            mask.contiguous(),
            block.first,
            block.listed,
            one.slots.shape[0],
            mask.shape[0],
            right.size,
            MASKED=masked,
            WIDTH=block.columns.width,
            CELLS=right.shape[1],
            MOST=most,
            BLOCK=KEYS,
        )
    return answer_of(asked)


ENTRY = 8
"""Numbers that say of a pair where it lies, in which form, and which flag it raises."""

ELEMENTS, PROGRAMS = 1024, 64
"""Elements that one program compares together, and the most programs of a pair."""

WHOLE = frozenset({torch.int32, torch.int64})
"""Dtypes of which a kernel compares one with another as a copy would convert it."""


def unequal(flags: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> Tensor:
    """Return, for each of some lists of pairs of one GPU, whether any pair differs, bool [flags].

    The two of a pair have one shape and one dtype, or dtypes that are both in WHOLE. Those in
    each list are there as long as the kernel runs: what frees them later frees them in its order.
    """
    entries, held, most = list[int](), list[Tensor](), 1
    for number, pairs in enumerate(flags):
        for pair in pairs:
            count = pair[0].numel()
            if count == 0:
                continue
            one, other, columns = in_rows(*pair)
            held += one, other
            most = max(most, count)
            strides = [tensor.stride(0) if columns < count else 0 for tensor in (one, other)]
            sizes = one.element_size() << 4 | other.element_size()
            entries += one.data_ptr(), other.data_ptr(), count, columns, *strides, sizes, number
    device = flags[0][0][0].device
    asked = on_device(np.array(entries + [0] * len(flags), dtype=np.int64), device)
    if held:
        kernels().unequal_kernel.launch(
            (len(held) // 2, min(PROGRAMS, -(-most // ELEMENTS)), 1),
            asked,
            len(held) // 2,
            BLOCK=ELEMENTS,
        )
    return asked[-len(flags) :].view(torch.bool)[::ENTRY]


def in_rows(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return two tensors of one shape as rows that lie apart, and how long a row is."""
    if one.is_contiguous() and other.is_contiguous():
        return one, other, one.numel()
    if one.ndim == 2 and one.stride(1) == other.stride(1) == 1:
        return one, other, one.shape[1]
    return one.contiguous(), other.contiguous(), one.numel()
