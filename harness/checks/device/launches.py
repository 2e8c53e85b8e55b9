"""Launching the kernels of `questions`: those of a step share one copy of what the host counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from paritybit.harness.checks.counted_reads import Block, keys_of
from paritybit.harness.checks.device.host_arrays import Numbers
from paritybit.harness.checks.device.unequal import Unequal, entries_of
from paritybit.reference.allocator import Ownership
from paritybit.reference.kernels.late import imported_late
from paritybit.subjects.protocol import KeyLists
from torch import Tensor

CELLS = 1024
"""Cells of tables that one program looks at."""

KEYS = 128
"""Keys, and counts, that one program looks at together."""

ELEMENTS, PROGRAMS = 1024, 64
"""Elements that one program compares together, and the most programs of a pair."""


def asks_kernels(device: torch.device) -> bool:
    """Whether questions to a device are answered by kernels, and not by ops."""
    return device.type == "cuda"


def kernels() -> Any:
    """Return the kernels."""
    return imported_late("paritybit.harness.checks.device.questions")


@dataclass(frozen=True)
class Question:
    """A flag that kernels of a device raise when it is read, together with others.

    `launch(asked, first, answer)` launches them: `numbers` lie in the int32 tensor `asked` from
    `first` on, and `asked[answer]` is to hold the answer.
    """

    device: torch.device
    numbers: Numbers
    launch: Callable[[Tensor, int, int], None]

    def __bool__(self) -> bool:
        """Whether it is raised."""
        return answers([self])[0]


def answers(questions: Sequence[Question], unequal: Sequence[Unequal] = ()) -> list[bool]:
    """Return the answers of questions to one device, read together.

    The last ones are of flags that two tensors differ.
    """
    # The entries, of 64 bits, come first, and each question's numbers after those before it.
    entries = entries_of(unequal)
    counts = [entries.numbers.size, *(question.numbers.size for question in questions)]
    *firsts, answer = accumulate(counts)
    asked = np.zeros(answer + len(questions) + len(unequal), dtype=np.int32)
    numbers = [entries.numbers, *(question.numbers.reshape(-1) for question in questions)]
    np.concatenate(numbers, out=asked[:answer])
    device = questions[0].device if questions else unequal[0].device
    # From memory that is not pinned: to pin some takes longer than the copy. It is here until the
    # answers are read, and the copy is done by then.
    held = torch.from_numpy(asked).to(device, non_blocking=True)
    for number, (question, first) in enumerate(zip(questions, firsts, strict=True)):
        question.launch(held, first, answer + number)
    if entries.count:
        kernels().unequal_kernel.launch(
            (entries.count, min(PROGRAMS, -(-entries.most // ELEMENTS)), 1),
            held,
            answer + len(questions),
            BLOCK=ELEMENTS,
        )
    return [answered != 0 for answered in held[answer:].tolist()]


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

    Of each sub-pool, the full one first, all slots are counted.
    """
    full, swa = blocks

    def launch(asked: Tensor, first: int, answer: int) -> None:
        lists, masks = [keys_of(keys, block.kind) for block in blocks], dict[str, bool]()
        given = list[Tensor | int]()
        for name, one, block in zip(("FULL", "SWA"), lists, blocks, strict=True):
            masks[f"{name}_MASKED"] = keys.mask is not None and one.mask_start is not None
            given += (
                one.begin.contiguous(),
                one.end.contiguous(),
                one.slots.contiguous(),
                asked if one.mask_start is None else one.mask_start.contiguous(),
                block.listed,
                one.slots.shape[0],
            )
        mask = asked if keys.mask is None else keys.mask.contiguous()
        kernels().reads_kernel.launch(
            (full.rows + swa.rows, 1, 1),
            asked,
            first,
            answer,
            mask,
            mask.shape[0],
            full.rows,
            *given,
            **masks,
            FULL_WIDTH=full.columns.width,
            SWA_WIDTH=swa.columns.width,
            CELLS=right.shape[1],
            MOST=most,
            BLOCK=KEYS,
        )

    return Question(keys.full.begin.device, right, launch)
