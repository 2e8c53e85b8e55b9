"""The kernel that finds the largest values of a row."""

# mypy: disable-error-code="no-untyped-def"
# Triton's values have no Python types.

import triton.language as tl
from paritybit.reference.kernels.launch import Kernel, jit

NO_PLACE = tl.constexpr(2**31 - 1)
"""A place beyond any row."""


@jit
def _ranked(value):
    """Return a value, or -inf for a NaN."""
    return tl.where(value <= float("inf"), value, float("-inf"))


@Kernel
def largest_kernel(
    found,
    places,
    values,
    values_stride,
    width,
    count,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    source = values + row * values_stride
    # Each value found is less than the one before, or equal and at a later place.
    before = tl.full((), float("inf"), tl.float32)
    last = tl.full((), -1, tl.int32)
    turn = 0
    while turn < count:
        best = tl.full((), float("-inf"), tl.float32)
        place = tl.full((), NO_PLACE, tl.int32)
        start = 0
        while start < width:
            column = start + tl.arange(0, TILE)
            value = tl.load(source + column, mask=column < width, other=0.0)
            value = _ranked(value)
            after = (value < before) | ((value == before) & (column > last))
            after = after & (column < width)
            peak = tl.max(tl.where(after, value, float("-inf")), 0)
            first = tl.min(tl.where(after & (value == peak), column, NO_PLACE), 0)
            better = (first != NO_PLACE) & ((peak > best) | (place == NO_PLACE))
            best = tl.where(better, peak, best)
            place = tl.where(better, first, place)
            start += TILE
        is_left = place != NO_PLACE
        before = tl.where(is_left, best, before)
        last = tl.where(is_left, place, last)
        place = tl.where(is_left, place, width - 1)
        value = tl.load(source + place)
        target = row * count + turn
        tl.store(found + target, _ranked(value))
        tl.store(places + target, place.to(tl.int64))
        turn += 1
