"""The state of requests beside KV: recurrent states, and a table for drafts.

This module knows where both are stored. The allocator knows who owns a state slot, and each run
finds its indices by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from paritybit.reference.config import SPECULATION
from torch import Tensor

from paritybit.compat import StrEnum

STATE_ROWS = 1 + SPECULATION.draft_tokens
"""Rows per state slot: the request's state, then that of each node of a tree to verify."""

DRAFT_COLUMNS = 2 * SPECULATION.candidates
"""Columns of the draft table: the scores of a draft's candidates, then their tokens."""


class Section(StrEnum):
    """The two kinds of state beside KV.

    A place in RECURRENT is a state slot. A place in DRAFT_TABLE is a row of `req_to_token`.
    """

    RECURRENT = "recurrent state"
    DRAFT_TABLE = "draft table"


def section_shapes(rows: int, hidden: int) -> dict[Section, torch.Size]:
    """Return the shape of each section for at most `rows` requests. Place 0 is reserved.

    The first axis is the place, the last axis holds elements. `hidden` is the model's width.
    """
    return {
        Section.RECURRENT: torch.Size((rows + 1, STATE_ROWS, hidden)),
        Section.DRAFT_TABLE: torch.Size((rows + 1, 1, DRAFT_COLUMNS)),
    }


class StatePool:
    """The state of all requests beside KV, as rows that ops access.

    `recurrent` [state slots x STATE_ROWS, H] holds the states. Slot s begins at row s * STATE_ROWS.
    `draft_table` is [request rows, DRAFT_COLUMNS]. Both have the dtype of KV.
    """

    def __init__(self, sections: dict[Section, Tensor]) -> None:
        self.sections = sections
        self.recurrent = sections[Section.RECURRENT].flatten(0, 1)
        self.draft_table = sections[Section.DRAFT_TABLE].flatten(0, 1)

    def accept(self, slot: int, node: int) -> None:
        """Set a request's state to that of `node` of its verified tree."""
        states = self.sections[Section.RECURRENT][slot]
        states[0] = states[1 + node]


DENSE = 2**24
"""Largest number of elements for which a table of hidden states is one tensor."""

GROWN = 1024
"""Number of positions by which a row of a larger table grows."""


class GrowingRows:
    """A table [rows, positions, width] whose rows have only as many positions as they need.

    Index it by tensors of rows and positions, or by a row and a slice of positions. Indexing by
    tensors waits for the device. Positions that were not written are zero, up to the last one
    written. Do not read beyond it.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = torch.Size((0, 0, width))
        self.none = torch.zeros((0, width), dtype=dtype, device=device)
        self.rows: dict[int, Tensor] = {}

    def zero_(self) -> None:
        """Clear all rows."""
        self.rows.clear()

    def new_empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return an empty tensor on the table's device, by default of its dtype."""
        return self.none.new_empty(*shape, dtype=dtype)

    def __getitem__(self, index: tuple[int, slice] | tuple[Tensor, Tensor]) -> Tensor:
        """Return a copy of the values at some places."""
        rows, positions = index
        if isinstance(rows, int):
            return self.rows.get(rows, self.none)[positions].clone()
        assert isinstance(positions, Tensor)
        found = self.none.new_empty(len(rows), self.shape[-1])
        for row, chosen in self._by_row(rows):
            found[chosen] = self.rows.get(row, self.none)[positions[chosen]]
        return found

    def __setitem__(self, index: tuple[int, slice] | tuple[Tensor, Tensor], values: Tensor) -> None:
        """Write values at some places."""
        rows, positions = index
        if isinstance(rows, int) and isinstance(positions, slice):
            self._of(rows, positions.stop)[positions] = values
            return
        assert isinstance(rows, Tensor) and isinstance(positions, Tensor)
        for row, chosen in self._by_row(rows):
            places = positions[chosen]
            self._of(row, int(places.max()) + 1)[places] = values[chosen]

    def _by_row(self, rows: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield each row in `rows`, and a mask of where it occurs."""
        for row in rows.unique().tolist():
            yield row, rows == row

    def _of(self, row: int, length: int) -> Tensor:
        """Return a row with at least `length` positions."""
        held = self.rows.get(row, self.none)
        if len(held) < length:
            more = -(-(length - len(held)) // GROWN) * GROWN
            grown = held.new_zeros(len(held) + more, self.shape[-1])
            grown[: len(held)] = held
            self.rows[row] = held = grown
        return held


HiddenStates = Tensor | GrowingRows
"""The hidden states of tokens, [token rows, positions, H]."""


def hidden_states_of(
    rows: int, positions: int, width: int, dtype: torch.dtype, device: torch.device
) -> HiddenStates:
    """Return an empty table of hidden states: one tensor unless it would be large."""
    if rows * positions * width > DENSE:
        return GrowingRows(width, dtype, device)
    return torch.zeros((rows, positions, width), dtype=dtype, device=device)


@dataclass(frozen=True)
class StatePaths:
    """How the states of T tokens follow from one another, in rows of `StatePool.recurrent`.

    Token t continues the state of token `parents[t]` of the same forward. If that is -1, it
    continues the state in row `sources[t]`, or none if that is -1 too. Its own state is stored in
    row `targets[t]`. All are int64 [T]. No path is longer than `longest` tokens.
    """

    sources: Tensor
    targets: Tensor
    parents: Tensor
    longest: int
