"""Launches the kernels of `questions`. All kernels of a step share one copy from the host."""

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
"""Cells of tables per program."""

KEYS = 128
"""Keys, and counts, that a program processes at a time."""

ELEMENTS, PROGRAMS = 1024, 64
"""Elements that a program compares at a time, and the maximum number of programs per pair."""


def asks_kernels(device: torch.device) -> bool:
    """Whether kernels answer questions on a device. Otherwise torch ops do."""
    return device.type == "cuda"


def kernels() -> Any:
    """Return the kernels."""
    return imported_late("paritybit.harness.checks.device.questions")


@dataclass(frozen=True)
class Question:
    """A flag that kernels compute when it is read, together with other flags.

    `launch(asked, first, answer)` launches the kernels. The int32 tensor `asked` has `numbers` from
    `first` on, and the kernels write the answer to `asked[answer]`.
    """

    device: torch.device
    numbers: Numbers
    launch: Callable[[Tensor, int, int], None]

    def __bool__(self) -> bool:
        """Whether the flag is set."""
        return answers([self])[0]


def answers(questions: Sequence[Question], unequal: Sequence[Unequal] = ()) -> list[bool]:
    """Return the answers to questions and then to `unequal` flags, all on one device."""
    # The 64-bit entries come first, then the numbers of each question.
    entries = entries_of(unequal)
    counts = [entries.numbers.size, *(question.numbers.size for question in questions)]
    *firsts, answer = accumulate(counts)
    asked = np.zeros(answer + len(questions) + len(unequal), dtype=np.int32)
    numbers = [entries.numbers, *(question.numbers.reshape(-1) for question in questions)]
    np.concatenate(numbers, out=asked[:answer])
    device = questions[0].device if questions else unequal[0].device
    # The memory is not pinned, because pinning takes longer than the copy. It stays alive until
    # the answers are read, and the copy is done by then.
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

    `judged` has worlds, one or two, each with the required cells, int32 [3, cells].
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
    """Return whether the counts of a row differ from `right`, int32 [rows, cells]: see `counted`.

    All slots of both sub-pools are counted, the full one first.
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
