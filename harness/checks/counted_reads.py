"""Counts in one pass how often each row of a forward reads each slot, from the key lists.

Both sub-pools are counted together, because on a GPU each op is a kernel launch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from paritybit.harness.checks.device.host_arrays import on_device
from paritybit.reference.config import Kind
from paritybit.subjects.protocol import KeyLists, Keys
from torch import Tensor

Slots = NDArray[np.int64]

AS_OFTEN = 2**30
"""A required count that means "any number of times". It is larger than any real count."""


@dataclass(frozen=True)
class Columns:
    """The slots that are counted, in ascending order. None means all `count` of a sub-pool."""

    count: int
    slots: Slots | None = None

    @property
    def width(self) -> int:
        """The number of counted slots. Other values have two further cells per row."""
        return self.count if self.slots is None else len(self.slots)

    def of(self, slots: Slots) -> Slots:
        """Return the columns of slots, which must be counted. An invalid slot gets the last + 1."""
        return slots if self.slots is None else np.searchsorted(self.slots, slots)

    def of_found(self, slots: Tensor) -> Tensor:
        """Return the columns of any slots. Others get a negative column or `width`."""
        if self.slots is None:
            return slots
        number = torch.full((self.count + 1,), self.width, device=slots.device)
        listed = torch.from_numpy(self.slots).to(slots.device)
        number[listed] = torch.arange(self.width, device=slots.device)
        # -1 indexes the last number, which stands for no slot.
        return number[slots.clamp(-1, self.count)]

    def slot(self, column: int) -> int:
        """Return the slot of a column, or `count` if the column has none."""
        if self.slots is None or column == self.width:
            return min(column, self.count)
        return int(self.slots[column])


@dataclass(frozen=True)
class Block:
    """The counted rows of one sub-pool, from row `first` on.

    - `listed`: how many of them have a key list.
    - `forwards`, `of_forward`: the forwards of the step, and the rows of each. If there are fewer
      lists, the last rows have none.
    - `columns`: the counted slots.
    """

    kind: Kind
    first: int
    listed: int
    of_forward: int
    forwards: int
    columns: Columns

    @property
    def rows(self) -> int:
        """The number of rows, with or without a list."""
        return max(self.listed, self.forwards * self.of_forward)


def width_of(blocks: Iterable[Block]) -> int:
    """Return the cells per row: one for negative numbers, the counted slots, one for the rest."""
    return max(block.columns.width for block in blocks) + 2


def keys_of(keys: KeyLists, kind: Kind) -> Keys:
    """Return the keys of a forward on layers of one kind."""
    return keys.full if kind is Kind.FULL else keys.swa


class Cells:
    """The cells in which reads are counted, as read-only tensors on one device.

    - `place`: int64 [keys], the numbers of a row's keys.
    - `lowest`, `highest`: int64 [rows, keys] and [rows, 1], bounds of the columns. The last key is
      always out of bounds.
    - `shift`: [rows, 1], the cell of a row's column minus the column.
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
    """Return the cells of blocks that count all slots. They are cached, because they recur."""
    return Cells(blocks, most, device)


def counted(keys: KeyLists, blocks: Sequence[Block], most: int) -> Tensor:
    """Count the reads of each row, int32 [rows, cells]: see `CountedReads`.

    Only the first `most` keys of a row are counted. The others count as invalid slots.
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
    """Clear the keys that the attention mask excludes from `listed`, bool [rows, keys]."""
    first = 0
    for one in lists:
        read = listed[first : first + one.begin.shape[0]]
        first += one.begin.shape[0]
        if one.mask_start is not None:
            bit = (one.mask_start[:, None] + place).clamp(0, mask.shape[0] - 1)
            read &= mask[bit].to(torch.bool)


@dataclass(frozen=True)
class CountedReads:
    """The reads of each row and the required reads, both int32 [rows, cells].

    `blocks` has the rows of each sub-pool. The first cell of a row counts negative numbers, the
    next ones its columns, and the last one everything else. A cell whose `right` is AS_OFTEN may
    have any count.
    """

    read: Tensor
    right: Tensor
    blocks: Sequence[Block]

    @property
    def wrong(self) -> Tensor:
        """The cells with wrong counts, bool [rows, cells]."""
        return (self.read != self.right) & (self.right != AS_OFTEN)

    def of(self, block: Block) -> "CountedReads":
        """Return the counts for the rows of one sub-pool."""
        rows = slice(block.first, block.first + block.rows)
        return CountedReads(self.read[rows], self.right[rows], [block])
