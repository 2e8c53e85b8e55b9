"""How often the rows of a forward read each slot, counted from their key lists in one pass.

Both sub-pools are counted together: on a GPU each op is a launch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from paritybit.harness.checks.device.host_arrays import Numbers, on_device
from paritybit.reference.config import Kind
from paritybit.subjects.protocol import KeyLists, Keys
from torch import Tensor

Slots = NDArray[np.int64]

AS_OFTEN = 2**30
"""Stands in a table of required counts for "any number of times": more than a row can ever read."""


@dataclass(frozen=True)
class Columns:
    """The slots that are counted, in ascending order, None for all `count` of a sub-pool."""

    count: int
    slots: Slots | None = None

    @property
    def width(self) -> int:
        """How many slots are counted. Whatever is none of them has cells of its own besides."""
        return self.count if self.slots is None else len(self.slots)

    def of(self, slots: Slots) -> Slots:
        """Return the columns of slots, all of them counted; what is no slot has one too high."""
        return slots if self.slots is None else np.searchsorted(self.slots, slots)

    def of_found(self, slots: Tensor) -> Tensor:
        """Return the columns of any slots; what is not counted has a negative one, or the width."""
        if self.slots is None:
            return slots
        number = torch.full((self.count + 1,), self.width, device=slots.device)
        listed = torch.from_numpy(self.slots).to(slots.device)
        number[listed] = torch.arange(self.width, device=slots.device)
        # What is negative is an index from behind: the last number too is of no slot.
        return number[slots.clamp(-1, self.count)]

    def slot(self, column: int) -> int:
        """Return the slot of a column; `count` is what is not counted."""
        if self.slots is None or column == self.width:
            return min(column, self.count)
        return int(self.slots[column])


@dataclass(frozen=True)
class Block:
    """The rows of one sub-pool among those that are counted: from row `first` on.

    `listed` of them have a list. A step of `forwards` forwards has `of_forward` rows of each, of
    which the last ones have no list where there are fewer. `columns` are the slots that are
    counted of them.
    """

    kind: Kind
    first: int
    listed: int
    of_forward: int
    forwards: int
    columns: Columns

    @property
    def rows(self) -> int:
        """How many rows there are, with a list or without."""
        return max(self.listed, self.forwards * self.of_forward)


def width_of(blocks: Iterable[Block]) -> int:
    """Return how many cells a row has: negative numbers, the slots that are counted, any other."""
    return max(block.columns.width for block in blocks) + 2


def keys_of(keys: KeyLists, kind: Kind) -> Keys:
    """Return the keys of a forward on layers of one kind."""
    return keys.full if kind is Kind.FULL else keys.swa


class Cells:
    """Where what rows of lists read is counted, as tensors of one device that nobody writes.

    `place` int64 [keys] numbers the keys of a row; `lowest` int64 [rows, keys] and `highest`
    [rows, 1] bound the columns of its slots, so that the last key is no slot whatever it is;
    `shift` [rows, 1] is what a column of a row is counted at, less the column.
    """

    def __init__(self, blocks: Sequence[Block], most: int, device: torch.device) -> None:
        widths = [[block.columns.width] * block.listed for block in blocks]
        numbers = [range(block.first, block.first + block.listed) for block in blocks]
        highest = np.array([width for one in widths for width in one])[:, None]
        lowest = np.full((len(highest), most + 1), -1)
        lowest[:, most:] = highest
        shift = np.array([row for one in numbers for row in one])[:, None] * width_of(blocks) + 1
        self.place = on_device(np.arange(most + 1), device)
        self.highest = on_device(highest, device)
        self.lowest = on_device(lowest, device)
        self.shift = on_device(shift, device)


@lru_cache(maxsize=256)
def _known_cells(blocks: tuple[Block, ...], most: int, device: torch.device) -> Cells:
    """Return the cells of blocks of which all slots are counted: they recur step after step."""
    return Cells(blocks, most, device)


def counted(keys: KeyLists, blocks: Sequence[Block], most: int) -> Tensor:
    """Return how often each row of the lists reads what each of its cells counts.

    That is int32 [rows, cells], see `CountedReads`. Of a row with more than `most` keys the first
    are counted, and further ones as no slot.
    """
    lists = [keys_of(keys, block.kind) for block in blocks]
    device = lists[0].begin.device
    all_slots = all(block.columns.slots is None for block in blocks)
    cells = (_known_cells if all_slots else Cells)(tuple(blocks), most, device)
    place = torch.cat([one.begin for one in lists])[:, None] + cells.place
    read = place < torch.cat([one.end for one in lists])[:, None]
    places = place.split_with_sizes([block.listed for block in blocks])
    found = torch.cat(
        [
            block.columns.of_found(one.slots[of_kind.clamp(0, one.slots.shape[0] - 1)])
            for block, one, of_kind in zip(blocks, lists, places, strict=True)
        ]
    )
    if keys.mask is not None:
        _mask(read, keys.mask, lists, cells.place)
    cell = found.clamp(cells.lowest, cells.highest) + cells.shift
    rows, width = sum(block.rows for block in blocks), width_of(blocks)
    counts = torch.zeros(rows * width, dtype=torch.int32, device=device)
    counts.scatter_add_(0, cell.view(-1), read.view(-1).to(torch.int32))
    return counts.view(rows, width)


def _mask(listed: Tensor, mask: Tensor, lists: Sequence[Keys], place: Tensor) -> None:
    """Leave, of the keys that rows list, bool [rows, keys], those that they read."""
    first = 0
    for one in lists:
        read = listed[first : first + one.begin.shape[0]]
        first += one.begin.shape[0]
        if one.mask_start is not None:
            bit = (one.mask_start[:, None] + place).clamp(0, mask.shape[0] - 1)
            read &= mask[bit].to(torch.bool)


@dataclass(frozen=True)
class CountedReads:
    """How often rows read what their cells count, and how often they must, int32 [rows, cells].

    `blocks` are the rows of each sub-pool. The first cell of a row counts negative numbers, the
    next ones its columns, and the one behind them what is no slot that is counted. Where `right`
    is AS_OFTEN, it may be read as often as it is.
    """

    read: Tensor
    right: Tensor
    blocks: Sequence[Block]

    @property
    def wrong(self) -> Tensor:
        """What a row reads too often or not often enough, bool [rows, cells]."""
        return (self.read != self.right) & (self.right != AS_OFTEN)

    def of(self, block: Block) -> "CountedReads":
        """Return those of the rows of one sub-pool."""
        rows = slice(block.first, block.first + block.rows)
        return CountedReads(self.read[rows], self.right[rows], [block])


def counted_on_host(lists: Mapping[Kind, Sequence[Any]], blocks: Sequence[Block]) -> Numbers:
    """Return how often each of some lists has each slot, in the cells of `counted`."""
    counts = np.zeros((sum(block.rows for block in blocks), width_of(blocks)), dtype=np.int32)
    for block in blocks:
        for row, listed in enumerate(lists[block.kind], block.first):
            for slot in listed:
                counts[row, min(max(slot, -1), block.columns.width) + 1] += 1
    return counts
