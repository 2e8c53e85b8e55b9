"""Static inputs as data: one contract row per buffer that a graph reads, with its padding policy.

An engine's runner has a handwritten line in its padding branch for each row here. The rows follow
the engine's runners at the five changes in its history that this project models. A bug with a
static input is a change of one row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from paritybit.subjects.toggles import LocationScheme

from paritybit.compat import StrEnum

SEQ_LEN_FILL_VALUE = 1
"""The length of a padded row. It attends to one position, so its softmax is defined."""


class Axis(StrEnum):
    """What a static input has one element (or one row) per. SCALAR has a single element."""

    TOKEN = "token"
    REQUEST = "request"
    DRAFT_SLOT = "draft slot"
    SCALAR = "scalar"


Extents = Mapping[Axis, int]
"""The length of every axis for a bucket."""


class Policy(StrEnum):
    """What the padding branch does to a buffer before live values are copied.

    RESET fills it with the row's value. KEEP leaves its tail stale on purpose.
    """

    RESET = "reset"
    KEEP = "keep"


PRESET_ONLY = frozenset({LocationScheme.PRESET})

HIDDEN = -1
"""A placeholder for the width of the model's hidden state."""


@dataclass(frozen=True)
class ContractRow:
    """One static input.

    - `dtype`: None means the model's.
    - `value`: the fill value of its policy.
    - `allocated`: the fill value at allocation. None means `value`.
    - `width`: elements per row, if it has rows.
    - `schemes`: the location schemes in which it exists.
    """

    name: str
    axis: Axis
    dtype: torch.dtype | None
    value: int = 0
    policy: Policy = Policy.RESET
    host: bool = False
    width: int | None = None
    allocated: int | None = None
    schemes: frozenset[LocationScheme] = frozenset(LocationScheme)

    def extent(self, extents: Extents) -> int:
        """Return the number of elements, or rows, of this input for a bucket."""
        return 1 if self.axis is Axis.SCALAR else extents[self.axis]

    def shape(self, extents: Extents, hidden: int) -> tuple[int, ...]:
        """Return the shape for a bucket, in a model of width `hidden`."""
        length = self.extent(extents)
        if self.width is None:
            return (length,)
        return length, hidden if self.width == HIDDEN else self.width


reset = ContractRow
"""Makes an input whose tail is filled with `value` if the batch is padded."""

keep = partial(ContractRow, policy=Policy.KEEP)
"""Makes an input whose tail stays stale on purpose."""

Contract = tuple[ContractRow, ...]

RowChanges = Mapping[str, Mapping[str, Any]]
"""Fields of contract rows to replace, by the row's name."""


def override(rows: Contract, changes: RowChanges) -> Contract:
    """Return `rows` with some fields replaced."""
    return tuple(replace(row, **changes.get(row.name, {})) for row in rows)
