"""What a request has beside KV: its recurrent state, and a row of a table that drafts go into.

Knows where both lie. Does not know who owns a state slot (the allocator does) nor how an
index into them is found (each world does, its own way).
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from reference.config import SPECULATION

STATE_ROWS = 1 + SPECULATION.draft_tokens
"""Rows of one state slot: the request's state, then that of each node of a tree to verify."""

DRAFT_COLUMNS = 2 * SPECULATION.candidates
"""Columns of the draft table: the scores of a draft's candidates, then their tokens."""


class Section(StrEnum):
    """The two kinds of state beside KV.

    A place of RECURRENT is a state slot, one of DRAFT_TABLE is a request's row of `req_to_token`.
    """

    RECURRENT = "recurrent state"
    DRAFT_TABLE = "draft table"


def section_shapes(rows: int, hidden: int) -> dict[Section, torch.Size]:
    """Return the shape of each section for at most `rows` requests, place 0 being reserved.

    The place is the first axis, what is one element the last; `hidden` is the model's width.
    """
    return {
        Section.RECURRENT: torch.Size((rows + 1, STATE_ROWS, hidden)),
        Section.DRAFT_TABLE: torch.Size((rows + 1, 1, DRAFT_COLUMNS)),
    }


class StatePool:
    """The state of all requests beside KV, as ops reach it: row by row.

    `recurrent` [state slots x STATE_ROWS, H] holds the states; slot s begins at row
    s * STATE_ROWS. `draft_table` is [request rows, DRAFT_COLUMNS]. Both have the dtype of KV.
    """

    def __init__(self, sections: dict[Section, Tensor]) -> None:
        self.sections = sections
        self.recurrent = sections[Section.RECURRENT].flatten(0, 1)
        self.draft_table = sections[Section.DRAFT_TABLE].flatten(0, 1)

    def accept(self, slot: int, node: int) -> None:
        """Make the state of `node` of the tree just verified the state of its request."""
        states = self.sections[Section.RECURRENT][slot]
        states[0] = states[1 + node]


@dataclass(frozen=True)
class StatePaths:
    """How the states of T tokens follow from one another, in rows of `StatePool.recurrent`.

    A token continues the state of token `parents[t]` of the same forward or, where that is -1,
    the state in row `sources[t]`, or none at all where that is -1 too. Its own state is stored
    in row `targets[t]`. All are int64 [T]. No path is longer than `longest` tokens.
    """

    sources: Tensor
    targets: Tensor
    parents: Tensor
    longest: int
