"""Static inputs as data: one row per buffer a graph reads, and what its padding holds.

Where an engine's runner has a hand-written line in its padding branch, a runner here
has a row. The rows were read off the engine's runners at the five changes of its history
that this build follows. A bug of a static input is a difference from one of these rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from paritybit.reference.batch import MROPE_SECTIONS
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from paritybit.compat import StrEnum

SEQ_LEN_FILL_VALUE = 1
"""Length of a padded row: it attends to one position, so that its softmax is defined."""

ENCODER_LEN_FILL_VALUE = 0


class Axis(StrEnum):
    """What a static input holds one element (or one row) for. SCALAR holds a single element."""

    TOKEN = "token"
    MROPE = "3 x token"
    REQUEST = "request"
    DRAFT_SLOT = "draft slot"
    MASK = "mask bit"
    SCALAR = "scalar"


Extents = Mapping[Axis, int]
"""The length of every axis for a bucket."""


class Policy(StrEnum):
    """What the padding branch does to a buffer before the live values are copied.

    RESET fills it with the row's value. KEEP leaves its tail stale on purpose.
    FILL_ONCE is filled at allocation and never reset.
    """

    RESET = "reset"
    KEEP = "keep"
    FILL_ONCE = "fill once"


HIDDEN = -1
"""Stands for the width of the model's hidden state."""

TOPK = -2
"""Stands for the branches of a draft."""


@dataclass(frozen=True)
class StaticInput:
    """One static input. `value` is what its policy fills in.

    At allocation it is filled with `allocated`, or with `value` where that is None. `width`
    is given where it holds rows of that many elements. `dtype` None is the model's. It exists
    only under the location schemes `schemes`.
    """

    name: str
    axis: Axis
    dtype: torch.dtype | None
    policy: Policy
    value: int = 0
    host: bool = False
    schemes: frozenset[LocationScheme] = frozenset(LocationScheme)
    width: int | None = None
    allocated: int | None = None

    def extent(self, extents: Extents) -> int:
        """Return how many elements, or rows, this input has for a bucket."""
        if self.axis is Axis.SCALAR:
            return 1
        return extents[Axis.TOKEN if self.axis is Axis.MROPE else self.axis]

    def shape(self, extents: Extents, widths: Mapping[int, int]) -> tuple[int, ...]:
        """Return the shape of this input for a bucket; `widths` has what HIDDEN and TOPK are."""
        length = self.extent(extents)
        if self.axis is Axis.MROPE:
            return MROPE_SECTIONS, length
        if self.width is None:
            return (length,)
        return length, widths.get(self.width, self.width)

    def head(self, buffer: Tensor, length: int) -> Tensor:
        """Return the first `length` elements, or rows, of this input's buffer."""
        return buffer[:, :length] if self.axis is Axis.MROPE else buffer[:length]

    def length(self, values: Tensor) -> int:
        """Return how many elements, or rows, `values` have along this input's axis."""
        return values.shape[-1] if self.axis is Axis.MROPE else values.shape[0]

    @property
    def padding(self) -> str:
        """The policy in words."""
        return f"fill {self.value}" if self.policy is Policy.RESET else str(self.policy)


def reset(
    name: str,
    axis: Axis,
    dtype: torch.dtype | None,
    value: int = 0,
    *,
    host: bool = False,
    width: int | None = None,
    allocated: int | None = None,
) -> StaticInput:
    """Return an input whose tail is filled with `value` whenever the batch is padded."""
    return StaticInput(
        name, axis, dtype, Policy.RESET, value, host, width=width, allocated=allocated
    )


def keep(
    name: str, axis: Axis, dtype: torch.dtype | None, *, width: int | None = None
) -> StaticInput:
    """Return an input whose tail stays stale on purpose."""
    return StaticInput(name, axis, dtype, Policy.KEEP, width=width)


Contract = tuple[StaticInput, ...]

Changes = Mapping[str, Mapping[str, Any]]
"""Fields of contract rows to replace, by the name of the row."""


def override(rows: Contract, changes: Changes) -> Contract:
    """Return `rows` with fields of the named ones replaced."""
    return tuple(replace(row, **changes.get(row.name, {})) for row in rows)


LISTED_CONVERSIONS: frozenset[tuple[str, torch.dtype, torch.dtype]] = frozenset(
    {
        ("seq_lens", torch.int64, torch.int32),
        ("seq_lens_cpu", torch.int64, torch.int32),
        ("encoder_lens", torch.int64, torch.int32),
        ("window_kv_indices", torch.int32, torch.int64),
        ("kv_indices", torch.int32, torch.int64),
    }
)
"""Every dtype conversion on copy into a static buffer that is legitimate: (name, from, to)."""
