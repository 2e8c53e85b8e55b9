"""The ops on CUDA: torch, with Triton kernels for what depends on the batch there.

Torch's products sum in an order that depends on the number of rows, its attention would need
products too, and its copies resolve equal indices in no fixed order. The kernels here compute one
row per program, their tiles depend on model widths only, and the highest of equal indices wins.

Import this module late: importing Triton decides whether its interpreter is used.
"""

# mypy: disable-error-code="no-untyped-def"
# Triton's values have no Python types.

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from paritybit.reference.ops import NORM_EPSILON, ListedKeys, Ops
from torch import Tensor

TILE_AREA = 4096
"""Elements of a two-axis tile: 32 registers per thread."""

INPUT_TILE = 128
"""Input features per step of a product."""

KEY_TILE = 32
"""Keys per step of attention, fewer if heads are wide."""

STEP = tl.constexpr(64)
"""Indices per step of the search for the last equal one."""

EPSILON = tl.constexpr(NORM_EPSILON)


def kernel(function: Callable[..., Any]) -> Any:
    """Return a kernel that is specialised on its constants only.

    A kernel that is compiled again for one row, or for an aligned pointer, may sum in another
    order.
    """
    parameters = inspect.signature(function).parameters.items()
    values = [name for name, value in parameters if value.annotation is not tl.constexpr]
    return triton.jit(function, do_not_specialize=values)


@kernel
def last_of(rows, count, row):
    """Return the last index at which `rows`, of length `count`, contains `row`.

    If several values are stored in one row, only the last one is written.
    """
    highest = tl.full((STEP,), -1, tl.int32)
    start = 0
    while start < count:
        other = start + tl.arange(0, STEP)
        named = tl.load(rows + other, mask=other < count, other=0).to(tl.int64)
        highest = tl.where((other < count) & (named == row), other, highest)
        start += STEP
    return tl.max(highest, 0)


@kernel
def store_rows_kernel(table, rows, count, values, stride, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Store one of `count` values in its row of a table, unless a later value has the same row."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + place).to(tl.int64)
    element = tl.arange(0, TILE)
    wins = (element < WIDTH) & (last_of(rows, count, row) == place)
    entry = tl.load(values + place * stride + element, mask=wins)
    tl.store(table + row * WIDTH + element, entry, mask=wins)


@kernel
def product_kernel(
    output,
    inputs,
    stride,
    norm,
    weight,
    residual,
    residual_stride,
    NORMED: tl.constexpr,
    ADDED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Multiply each row, normed if NORMED, by the transposed weight, and add if ADDED."""
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
    source = inputs + row * stride
    scale = 1.0
    if NORMED:
        square = tl.full((TILE,), 0.0, tl.float32)
        for start in range(0, INPUTS, TILE):
            column = start + tl.arange(0, TILE)
            value = tl.load(source + column, mask=column < INPUTS, other=0.0).to(tl.float32)
            square += value * value
        scale = tl.rsqrt(tl.sum(square, 0) / INPUTS + EPSILON)
    total = tl.full((OUTPUT_TILE, TILE), 0.0, tl.float32)
    for start in range(0, INPUTS, TILE):
        column = start + tl.arange(0, TILE)
        value = tl.load(source + column, mask=column < INPUTS, other=0.0).to(tl.float32)
        if NORMED:
            gain = tl.load(norm + column, mask=column < INPUTS, other=0.0).to(tl.float32)
            value = value * scale * gain
        place = weight + feature[:, None] * INPUTS + column[None, :]
        inside = (feature < OUTPUTS)[:, None] & (column < INPUTS)[None, :]
        total += tl.load(place, mask=inside, other=0.0).to(tl.float32) * value[None, :]
    result = tl.sum(total, 1)
    if ADDED:
        kept = residual + row * residual_stride + feature
        result += tl.load(kept, mask=feature < OUTPUTS, other=0.0)
    tl.store(output + row * OUTPUTS + feature, result, mask=feature < OUTPUTS)


@kernel
def attention_kernel(
    output,
    query,
    query_stride,
    cache,
    plane,
    begin,
    end,
    slots,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    KEYS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Compute the attention of one row and head over its listed slots, KEYS at a time.

    `plane` is the distance from K to V in elements.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    element = tl.arange(0, TILE)
    place = query + row * query_stride + head * DIM + element
    wanted = tl.load(place, mask=element < DIM, other=0.0).to(tl.float32)[None, :]
    peak = tl.full((), float("-inf"), tl.float32)
    totals = tl.full((KEYS,), 0.0, tl.float32)
    mixed = tl.full((KEYS, TILE), 0.0, tl.float32)
    start, last = tl.load(begin + row), tl.load(end + row)
    while start < last:
        turn = start + tl.arange(0, KEYS)
        taken = turn < last
        slot = tl.load(slots + turn, mask=taken, other=0).to(tl.int64)
        entry = cache + ((slot * KV_HEADS + kv_head) * DIM)[:, None] + element[None, :]
        inside = taken[:, None] & (element < DIM)[None, :]
        key = tl.load(entry, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(entry + plane, mask=inside, other=0.0).to(tl.float32)
        score = tl.where(taken, tl.sum(key * wanted, 1) * SCALE, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 0))
        weight = tl.exp(score - higher)
        shrink = tl.exp(peak - higher)
        totals = totals * shrink + weight
        mixed = mixed * shrink + weight[:, None] * value
        peak = higher
        start += KEYS
    total = tl.sum(totals, 0)
    # Without a key the total is zero: divide zeros by one.
    total = tl.where(total == 0.0, 1.0, total)
    result = (tl.sum(mixed, 0) / total).to(output.dtype.element_ty)
    target = output + (row * HEADS + head) * DIM + element
    tl.store(target, result, mask=element < DIM)


class CudaOps(Ops):
    """The ops for CUDA tensors. Weights, tables and the cache are contiguous."""

    def __init__(self, device: str = "cuda") -> None:
        super().__init__(device)

    def _store_rows(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        count, width = values.shape
        rows, tile = rows.contiguous(), _power_of_2(width)
        store_rows_kernel[(count,)](
            table, rows, count, values, values.stride(0), WIDTH=width, TILE=tile
        )

    def _store_kv(self, cache: Tensor, loc: Tensor, key: Tensor, value: Tensor) -> None:
        for plane, values in zip(cache.flatten(2), (key, value), strict=True):
            self._store_rows(plane, loc, values.flatten(1))

    def _product(
        self,
        inputs: Tensor,
        weight: Tensor,
        *,
        norm: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        rows, (outputs, width) = inputs.shape[0], weight.shape
        tile = min(_power_of_2(width), INPUT_TILE)
        output_tile = min(_power_of_2(outputs), TILE_AREA // tile)
        output = inputs.new_empty((rows, outputs), dtype=torch.float32)
        product_kernel[(rows, -(-outputs // output_tile))](
            output,
            inputs,
            inputs.stride(0),
            weight if norm is None else norm,  # Read only if NORMED.
            weight,
            output if residual is None else residual,  # Read only if ADDED.
            0 if residual is None else residual.stride(0),
            NORMED=norm is not None,
            ADDED=residual is not None,
            OUTPUTS=outputs,
            INPUTS=width,
            OUTPUT_TILE=output_tile,
            TILE=tile,
        )
        return output

    def _attention(self, query: Tensor, cache: Tensor, keys: ListedKeys) -> Tensor:
        rows, heads, dim = query.shape
        output = query.new_empty(rows, heads, dim)
        tile = _power_of_2(dim)
        attention_kernel[(rows, heads)](
            output,
            query,
            query.stride(0),
            cache,
            cache.stride(0),
            keys.begin.contiguous(),
            keys.end.contiguous(),
            keys.slots.contiguous(),
            SCALE=dim**-0.5,
            HEADS=heads,
            KV_HEADS=cache.shape[2],
            DIM=dim,
            KEYS=min(KEY_TILE, TILE_AREA // tile),
            TILE=tile,
        )
        return output


def _power_of_2(width: int) -> int:
    """Return the smallest power of two that is at least `width`."""
    return 1 << (width - 1).bit_length()
