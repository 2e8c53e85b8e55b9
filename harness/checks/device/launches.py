"""Launching the kernels of `questions`: those of a step share one copy of what the host counted."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

ELEMENTS, PROGRAMS = 1024, 64
"""Elements that one program compares together, and the most programs of a pair."""

ENTRY = 8
"""Numbers that say of a pair where it lies, in which form, and where its answer is."""

WHOLE = frozenset({torch.int32, torch.int64})
"""Dtypes of which a kernel compares one with another as a copy would convert it."""

Pairs = Sequence[tuple[Tensor, Tensor]]
"""Pairs of tensors, the two of one shape and one dtype, or of dtypes that are both in WHOLE."""


def asks_kernels(device: torch.device) -> bool:
    """Whether questions to a device are answered by kernels, and not by ops."""
    return device.type == "cuda"


@cache
def kernels() -> Any:
    """Return the kernels. Imported late: that decides whether Triton's interpreter is used."""
    return importlib.import_module("harness.checks.device.questions")


@dataclass(frozen=True)
class Question:
    """A flag that kernels of a device raise once it is read, together with others.

    `launch` is given a tensor int32, from where on `numbers` lie in it, and where the answer goes.
    """

    device: torch.device
    numbers: Numbers
    launch: Callable[[Tensor, int, int], None]

    def __bool__(self) -> bool:
        """Whether it is raised."""
        return bool(answers([self]))


def answers(questions: Sequence[Question], unequal: Sequence[Pairs] = ()) -> Tensor:
    """Return the answers of questions to one device, bool [questions + unequal].

    The last ones are, of lists of pairs, whether any pair differs in a bit.
    """
    counts = [question.numbers.size for question in questions]
    firsts = np.cumsum([0, *counts]).tolist()
    entries = firsts[-1] + firsts[-1] % 2  # These are of 64 bits.
    lying = [[in_rows(*pair) for pair in pairs if pair[0].numel()] for pairs in unequal]
    rows = pair_rows(lying)
    answer = entries + 2 * len(rows) * ENTRY
    for row in rows:
        row[-1] += answer + len(questions)
    asked = np.zeros(answer + len(questions) + len(unequal), dtype=np.int32)
    for first, question in zip(firsts, questions, strict=False):
        asked[first : first + question.numbers.size] = question.numbers.reshape(-1)
    if rows:
        asked[entries:answer] = np.array(rows, dtype=np.int64).reshape(-1).view(np.int32)
    device = questions[0].device if questions else unequal[0][0][0].device
    held = on_device(asked, device)
    for number, question in enumerate(questions):
        question.launch(held, firsts[number], answer + number)
    if rows:
        kernels().unequal_kernel.launch(
            (len(rows), min(PROGRAMS, max(-(-row[2] // ELEMENTS) for row in rows)), 1),
            held,
            held[entries:answer].view(torch.int64),
            BLOCK=ELEMENTS,
        )
    return held[answer:].view(torch.bool)[::4]


Lying = tuple[Tensor, Tensor, int]
"""Two tensors of one shape that lie in rows, and how long a row is."""


def in_rows(one: Tensor, other: Tensor) -> Lying:
    """Return two tensors of one shape as they lie in rows."""
    if one.is_contiguous() and other.is_contiguous():
        return one, other, one.numel()
    if one.ndim == 2 and one.stride(1) == other.stride(1) == 1:
        return one, other, one.shape[1]
    return one.contiguous(), other.contiguous(), one.numel()


def pair_rows(unequal: Sequence[Sequence[Lying]]) -> list[list[int]]:
    """Return the entry of each pair: where both lie, how many elements each has, and in which form.

    The last number is which of the lists the pair is in. Nobody may free a pair before a kernel
    was given its entry.
    """
    rows = []
    for number, pairs in enumerate(unequal):
        for one, other, columns in pairs:
            count = one.numel()
            strides = [tensor.stride(0) if columns < count else 0 for tensor in (one, other)]
            sizes = one.element_size() << 4 | other.element_size()
            places = one.data_ptr(), other.data_ptr()
            rows.append([*places, count, columns, *strides, sizes, number])
    return rows


def tables_wrong(judged: Sequence[tuple[Sequence[Ownership], Numbers]]) -> Question:
    """Return whether a cell of any world's tables is wrong: see `wrong_cells`.

    One world, or two, are judged by what cells must be, int32 [3, cells].
    """

    def launch(asked: Tensor, first: int, answer: int) -> None:
        for worlds, cells in judged:
            one, other = worlds[0], worlds[-1]
            kernels().tables_kernel.launch(
                (-(-cells.shape[1] // CELLS), 1, 1),
                asked,
                first,
                answer,
                one.mapping.contiguous(),
                one.req_to_token.contiguous(),
                other.mapping.contiguous(),
                other.req_to_token.contiguous(),
                one.mapping.shape[0],
                cells.shape[1],
                WORLDS=len(worlds),
                BLOCK=CELLS,
            )
            first += cells.size

    numbers = np.concatenate([cells.reshape(-1) for _, cells in judged])
    return Question(judged[0][0][0].mapping.device, numbers, launch)


def reads_wrong(keys: KeyLists, blocks: Sequence[Block], right: Numbers, most: int) -> Question:
    """Return whether a row reads otherwise than it must, int32 [rows, cells]: see `counted`.

    Of each sub-pool all slots are counted.
    """

    def launch(asked: Tensor, first: int, answer: int) -> None:
        for block in blocks:
            one = keys_of(keys, block.kind)
            mask = asked if keys.mask is None else keys.mask.contiguous()
            kernels().reads_kernel.launch(
                (block.rows, 1, 1),
                asked,
                first + block.first * right.shape[1],
                answer,
                one.begin.contiguous(),
                one.end.contiguous(),
                one.slots.contiguous(),
                asked if one.mask_start is None else one.mask_start.contiguous(),
                mask,
                block.listed,
                one.slots.shape[0],
                mask.shape[0],
                MASKED=keys.mask is not None and one.mask_start is not None,
                WIDTH=block.columns.width,
                CELLS=right.shape[1],
                MOST=most,
                BLOCK=KEYS,
            )

    return Question(keys.full.begin.device, right, launch)
