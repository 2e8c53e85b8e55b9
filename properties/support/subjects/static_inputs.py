"""What a test expects of a static input, and what it puts there to see what is written over."""

from dataclasses import dataclass

import torch
from paritybit.subjects.contracts import Axis
from paritybit.subjects.toggles import LocationScheme


@dataclass(frozen=True)
class ExpectedInput:
    """A static input as upstream has it.

    `dtype` None is the model's. `tail` is what padding leaves beyond the live part, None for
    what was there before; `new` is what a newly made buffer holds. `width` is the length of
    each element where that is a row, `HIDDEN` for the model's, `TOPK` for a draft's branches.
    What is not `populated` is never written at all; what has a `scheme` exists under that one
    alone.
    """

    axis: Axis
    dtype: torch.dtype | None
    tail: int | None = None
    new: int = 0
    width: int | None = None
    host: bool = False
    populated: bool = True
    scheme: LocationScheme | None = None


def stale(dtype: torch.dtype | None) -> int:
    """Return what an earlier batch left in a buffer: no padding value, and valid everywhere."""
    return 1 if dtype is torch.bool else 3
