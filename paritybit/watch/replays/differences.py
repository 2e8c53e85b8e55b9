"""Measures the difference between the results of two runs, and whether rounding can explain it.

Rounding changes the last bits in the first layer whose KV differs. Later layers may then differ by
any amount, for example if a router chooses another expert. So the size of a difference is measured
in the first layer of each group that differs.
"""

import math

import torch
from torch import Tensor

from paritybit.watch.bits import as_integers
from paritybit.watch.observations import Difference
from paritybit.watch.replays.rerun import SavedSlots, Values

ROUNDINGS = 4
"""The largest difference that rounding explains, in units of the coarsest dtype's epsilon."""

LEAST = 2.0**-10
"""Smaller relative differences are always explained by rounding."""

OPAQUE = 2.0**-3
"""The epsilon of KV whose dtype has no numbers, such as packed bytes: that of a float of 8 bits."""


def difference(one: Values, other: Values, *, kernels: bool = False) -> Difference | None:
    """Return the difference between two runs, or None if all bits are equal.

    With other `kernels`, KV whose dtype has no numbers is not compared: a bit may be a rounding.
    """
    held = [rows for saved in one.owned for rows in saved.rows]
    floats = filter(torch.is_floating_point, (*one.outputs.values(), *held))
    limit = max([LEAST, *(ROUNDINGS * torch.finfo(tensor.dtype).eps for tensor in floats)])
    if kernels and not all(map(torch.is_floating_point, held)):
        limit = max(limit, ROUNDINGS * OPAQUE)
    pairs = zip(one.owned, other.owned, strict=True)
    firsts = [first for pair in pairs if (first := first_layer(*pair, numbers=kernels)) is not None]
    if firsts:
        where, group, size = min(firsts, key=lambda first: first[2])
        return Difference(where, group, size, limit, kv=True)
    shared = [name for name in one.outputs if name in other.outputs]
    sizes = {name: relative(one.outputs[name], other.outputs[name]) for name in shared}
    numbers = {name: size for name, size in sizes.items() if one.outputs[name].is_floating_point()}
    differing = {name: size for name, size in sizes.items() if size > 0}
    if not differing or not numbers:
        return None  # Without floats, integers may depend on values that are not visible here.
    larger = {name: size for name, size in numbers.items() if size > 0}
    where, size = max((larger or differing).items(), key=lambda item: item[1])
    return Difference(where, None, size, limit, kv=False)


def beyond(one: Values, other: Values) -> bool:
    """Return whether two runs differ by more than rounding."""
    return matters(difference(one, other))


def matters(found: Difference | None) -> bool:
    """Return whether there is a difference that rounding cannot explain."""
    return found is not None and found.beyond_rounding


def first_layer(
    one: SavedSlots, other: SavedSlots, *, numbers: bool = False
) -> tuple[str, str, float] | None:
    """Return the first layer of a group that differs, the group, and the relative difference.

    With `numbers`, only tensors whose dtype has numbers are compared.
    """
    parts = iter(zip(one.rows, other.rows, strict=True))
    group = one.ledger.group
    for layer in group.layers:
        pairs = [next(parts) for _ in layer.tensors]
        sizes = [relative(*pair) for pair in pairs if pair[0].is_floating_point() or not numbers]
        if any(sizes):
            return layer.name, group.name, max(sizes)
    return None


def relative(one: Tensor, other: Tensor) -> float:
    """Return the largest difference relative to the largest value; 0.0 if all bits are equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if torch.equal(as_integers(one.contiguous()), as_integers(other.contiguous())):
        return 0.0
    if not one.is_floating_point():
        return math.inf
    left, right = one.to(torch.float64), other.to(torch.float64)
    if not torch.equal(left.isfinite(), right.isfinite()):
        return math.inf
    finite = left.isfinite()
    gap = (left[finite] - right[finite]).abs()
    largest = torch.maximum(left[finite].abs(), right[finite].abs())
    if not gap.numel() or float(largest.max()) == 0.0:
        return math.ulp(0.0)  # The bits differ, but the numbers are equal.
    return max(float(gap.max() / largest.max()), math.ulp(0.0))
