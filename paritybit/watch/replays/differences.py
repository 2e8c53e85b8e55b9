"""How far what two runs computed differs, and whether rounding can be the reason.

Rounding starts small: in the first layer whose KV differs, it changes the last bits. A later layer
may then differ by anything, as when a router chooses another expert. So the size of a difference
is that in the first layer, in each group, that differs at all.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers
from paritybit.watch.replays.trial import SavedSlots, Values

ROUNDINGS = 4
"""Steps of the coarsest dtype, relative to the largest value, that rounding may account for."""

LEAST = 2.0**-10
"""The least relative difference that rounding is not taken to explain."""


@dataclass(frozen=True)
class Difference:
    """`where` is the first layer or output that differs. `size` is relative to its largest value.

    `kv` says whether KV differs; else only outputs do.
    """

    where: str
    group: str | None
    size: float
    limit: float
    kv: bool

    @property
    def beyond_rounding(self) -> bool:
        """Whether rounding cannot be the reason."""
        return self.size > self.limit


def difference(one: Values, other: Values) -> Difference | None:
    """Return how two runs differ; None if all bits are equal."""
    limit = max(LEAST, ROUNDINGS * coarsest([*one.outputs.values(), *rows(one)]))
    firsts = [first for first in map(first_layer, one.owned, other.owned) if first is not None]
    if firsts:
        where, group, size = min(firsts, key=lambda first: first[2])
        return Difference(where, group, size, limit, kv=True)
    shared = [name for name in one.outputs if name in other.outputs]
    sizes = {name: relative(one.outputs[name], other.outputs[name]) for name in shared}
    numbers = {name: size for name, size in sizes.items() if is_float(one.outputs[name])}
    differing = {name: size for name, size in sizes.items() if size > 0}
    if not differing or not numbers:
        return None  # Integers alone may depend on numbers that nobody sees.
    floats = {name: size for name, size in numbers.items() if size > 0}
    where, size = max((floats or differing).items(), key=lambda item: item[1])
    return Difference(where, None, size, limit, kv=False)


def rows(values: Values) -> list[Tensor]:
    """Return the rows of all owned slots."""
    return [rows for saved in values.owned for rows in saved.rows]


def is_float(tensor: Tensor) -> bool:
    """Whether a tensor holds floating-point numbers."""
    return tensor.dtype.is_floating_point


def coarsest(tensors: list[Tensor]) -> float:
    """Return the largest relative step among the dtypes of tensors."""
    return max((torch.finfo(t.dtype).eps for t in tensors if is_float(t)), default=0.0)


def first_layer(one: SavedSlots, other: SavedSlots) -> tuple[str, str, float] | None:
    """Return the first layer of a group that differs, the group, and the relative size."""
    parts = iter(zip(one.rows, other.rows, strict=True))
    group = one.ledger.group
    for layer in group.layers:
        sizes = [relative(*next(parts)) for _ in layer.tensors]
        if any(sizes):
            return layer.name, group.name, max(sizes)
    return None


def relative(one: Tensor, other: Tensor) -> float:
    """Return the largest difference relative to the largest value; 0.0 if all bits are equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if torch.equal(as_integers(one.contiguous()), as_integers(other.contiguous())):
        return 0.0
    if not is_float(one):
        return math.inf
    left, right = one.to(torch.float64), other.to(torch.float64)
    if not torch.equal(left.isfinite(), right.isfinite()):
        return math.inf
    finite = left.isfinite()
    gap = (left[finite] - right[finite]).abs()
    largest = torch.maximum(left[finite].abs(), right[finite].abs())
    if not gap.numel() or float(largest.max()) == 0.0:
        return math.ulp(0.0)  # The bits differ, the numbers do not.
    return max(float(gap.max() / largest.max()), math.ulp(0.0))
