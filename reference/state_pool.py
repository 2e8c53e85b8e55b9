"""The state of requests beside KV: recurrent states, and a table for drafts.

This module knows where both are stored. The allocator knows who owns a state slot, and each run
finds its indices by itself.
"""

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
