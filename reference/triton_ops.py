"""The ops as Triton kernels: one launch per op, and one compiled kernel whatever the batch.

Knows how a row is cut into tiles. Does not know how many rows there are when it
picks a tile: tiles come from model widths alone, a program works on one row, and
sums run in one order. Nothing is specialised on a run-time value, because a
kernel compiled anew for one row or for an aligned pointer may sum in another order.
"""

# mypy: disable-error-code="no-untyped-def"
# The line above is for the kernels: Triton's values have no Python types.

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from reference.batch import TRACK_INTERVAL
from reference.ops import Ops
from reference.torch_ops import GELU_CUBE, GELU_SCALE, NORM_EPSILON

TILE_AREA = 4096  # elements of a two-axis tile: 32 registers a thread
INPUT_TILE = 128  # input features that one step of a product reads
KEY_TILE = 32  # listed keys that one step of attention reads, fewer if heads are wide
LOC_TILE = 64  # locs that one step of a store scans

EPSILON = tl.constexpr(NORM_EPSILON)
CUBE = tl.constexpr(GELU_CUBE)
LOGISTIC = tl.constexpr(GELU_SCALE)
STEP = tl.constexpr(LOC_TILE)
INTERVAL = tl.constexpr(TRACK_INTERVAL)


def _jit(function: Callable[..., Any]) -> Any:
    """Make `function` a kernel, or a part of kernels, specialised on its constants alone."""
    parameters = inspect.signature(function).parameters.values()
    values = [each.name for each in parameters if each.annotation is not tl.constexpr]
    return triton.jit(function, do_not_specialize=values)


class Kernel:
    """A Triton kernel specialised on its constants and its tensors' dtypes alone.

    Once compiled for a set of them it is launched directly: Triton's own look-up costs
    more than the kernels here run for. Constants are passed by keyword.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = inspect.signature(function).parameters.values()
        self.constants = [each.name for each in parameters if each.annotation is tl.constexpr]
        self.function = _jit(function)
        self.compiled: dict[tuple[Any, ...], Any] = {}

    def launch(self, grid: tuple[int, int, int], *values: Any, **constants: Any) -> None:
        """Run the kernel over `grid`, compiling it if it is new."""
        key = (*[each.dtype for each in values if type(each) is Tensor], *constants.values())
        compiled = self.compiled.get(key)
        if compiled is None:
            # The interpreter compiles nothing and returns None: it is called anew each time.
            self.compiled[key] = self.function[grid](*values, **constants)
            return
        ordered = [constants[name] for name in self.constants]
        stream = driver.active.get_current_stream(values[0].device.index)
        # What follows the metadata are launch hooks, of which there are none.
        compiled.run(
            *grid,
            stream,
            compiled.function,
            compiled.packed_metadata,
            None,
            None,
            None,
            *values,
            *ordered,
        )


@Kernel
def _payload_kernel(
    output,
    track_table,
    track_indices,
    track_mask,
    positions,
    encoder_table,
    encoder_lens,
    HIDDEN: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < HIDDEN
    ends = tl.load(positions + row) % INTERVAL == INTERVAL - 1
    tracked = inside & tl.load(track_mask + row) & ends
    track = tl.load(track_indices + row).to(tl.int64) * HIDDEN + column
    encoder = tl.load(encoder_lens + row).to(tl.int64) * HIDDEN + column
    total = tl.load(track_table + track, mask=tracked, other=0.0).to(tl.float32)
    total += tl.load(encoder_table + encoder, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * HIDDEN + column, total, mask=inside)


@Kernel
def _embed_kernel(
    output,
    table,
    input_ids,
    payload,
    payload_stride,
    HIDDEN: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < HIDDEN
    token = tl.load(input_ids + row).to(tl.int64) * HIDDEN + column
    total = tl.load(table + token, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(payload + row * payload_stride + column, mask=inside, other=0.0)
    tl.store(output + row * HIDDEN + column, total.to(output.dtype.element_ty), mask=inside)


@Kernel
def _rotary_kernel(
    output,
    output_plane,
    positions,
    axis_stride,
    row_stride,
    section,
    frequency,
    PAIRS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, TILE)
    inside = pair < PAIRS
    axis = tl.load(section + pair, mask=inside, other=0).to(tl.int64)
    position = tl.load(positions + axis * axis_stride + row * row_stride, mask=inside, other=0)
    angle = position.to(tl.float32) * tl.load(frequency + pair, mask=inside, other=0.0)
    place = output + row * PAIRS + pair
    tl.store(place, tl.cos(angle), mask=inside)
    tl.store(place + output_plane, tl.sin(angle), mask=inside)


@Kernel
def _rope_kernel(
    output,
    inputs,
    input_stride,
    rotary,
    rotary_plane,
    rotary_stride,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    PAIR_TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEAD_TILE + tl.arange(0, HEAD_TILE))[:, None]
    pair = tl.arange(0, PAIR_TILE)[None, :]
    inside = (head < HEADS) & (pair < PAIRS)
    angle = rotary + row * rotary_stride + pair
    cosine = tl.load(angle, mask=pair < PAIRS, other=0.0)
    sine = tl.load(angle + rotary_plane, mask=pair < PAIRS, other=0.0)
    element = head * (2 * PAIRS) + pair
    source = inputs + row * input_stride + element
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + PAIRS, mask=inside, other=0.0).to(tl.float32)
    target = output + row * (HEADS * 2 * PAIRS) + element
    dtype = output.dtype.element_ty
    tl.store(target, (first * cosine - second * sine).to(dtype), mask=inside)
    tl.store(target + PAIRS, (second * cosine + first * sine).to(dtype), mask=inside)


@_jit
def _weight_tile(
    weight,
    feature,
    column,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    place = feature.to(tl.int64)[:, None] * INPUTS + column[None, :]
    inside = (feature < OUTPUTS)[:, None] & (column < INPUTS)[None, :]
    return tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)


@Kernel
def _norm_linear_kernel(
    output,
    hidden,
    hidden_stride,
    norm,
    weight,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
    source = hidden + row * hidden_stride
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
        gain = tl.load(norm + column, mask=column < INPUTS, other=0.0).to(tl.float32)
        product = (value * scale * gain)[None, :]
        total += _weight_tile(weight, feature, column, OUTPUTS, INPUTS) * product
    result = tl.sum(total, 1).to(output.dtype.element_ty)
    tl.store(output + row * OUTPUTS + feature, result, mask=feature < OUTPUTS)


@Kernel
def _linear_add_kernel(
    output,
    inputs,
    input_stride,
    weight,
    residual,
    residual_stride,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
    total = tl.full((OUTPUT_TILE, TILE), 0.0, tl.float32)
    for start in range(0, INPUTS, TILE):
        column = start + tl.arange(0, TILE)
        place = inputs + row * input_stride + column
        value = tl.load(place, mask=column < INPUTS, other=0.0).to(tl.float32)
        total += _weight_tile(weight, feature, column, OUTPUTS, INPUTS) * value[None, :]
    wanted = feature < OUTPUTS
    kept = tl.load(residual + row * residual_stride + feature, mask=wanted, other=0.0)
    result = (kept.to(tl.float32) + tl.sum(total, 1)).to(output.dtype.element_ty)
    tl.store(output + row * OUTPUTS + feature, result, mask=wanted)


@Kernel
def _gated_linear_add_kernel(
    output,
    gate_up,
    gate_up_stride,
    weight,
    residual,
    residual_stride,
    row_limit,
    GELU: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
    total = tl.full((OUTPUT_TILE, TILE), 0.0, tl.float32)
    for start in range(0, INPUTS, TILE):
        column = start + tl.arange(0, TILE)
        place = gate_up + row * gate_up_stride + column
        gate = tl.load(place, mask=column < INPUTS, other=0.0).to(tl.float32)
        up = tl.load(place + INPUTS, mask=column < INPUTS, other=0.0).to(tl.float32)
        exponent = gate
        if GELU:
            exponent = (gate + gate * gate * gate * CUBE) * LOGISTIC
        product = (gate / (1.0 + tl.exp(-exponent)) * up)[None, :]
        total += _weight_tile(weight, feature, column, OUTPUTS, INPUTS) * product
    wanted = feature < OUTPUTS
    kept = tl.load(residual + row * residual_stride + feature, mask=wanted, other=0.0)
    added = (kept.to(tl.float32) + tl.sum(total, 1)).to(output.dtype.element_ty)
    result = tl.where(row < tl.load(row_limit), added, kept)
    tl.store(output + row * OUTPUTS + feature, result, mask=wanted)


@Kernel
def _probabilities_kernel(
    output,
    logits,
    logits_stride,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    source = logits + row * logits_stride
    peaks = tl.full((TILE,), float("-inf"), tl.float32)
    for start in range(0, WIDTH, TILE):
        column = start + tl.arange(0, TILE)
        value = tl.load(source + column, mask=column < WIDTH, other=float("-inf"))
        peaks = tl.maximum(peaks, value.to(tl.float32))
    peak = tl.max(peaks, 0)
    totals = tl.full((TILE,), 0.0, tl.float32)
    for start in range(0, WIDTH, TILE):
        column = start + tl.arange(0, TILE)
        value = tl.load(source + column, mask=column < WIDTH, other=float("-inf"))
        totals += tl.exp(value.to(tl.float32) - peak)
    total = tl.sum(totals, 0)
    for start in range(0, WIDTH, TILE):
        column = start + tl.arange(0, TILE)
        value = tl.load(source + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        target = output + row * WIDTH + column
        tl.store(target, tl.exp(value - peak) / total, mask=column < WIDTH)


@Kernel
def _store_kv_kernel(
    cache,
    plane,
    loc,
    rows,
    key,
    key_stride,
    value,
    value_stride,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(loc + row).to(tl.int64)
    highest = tl.full((STEP,), -1, tl.int32)
    for start in range(0, rows, STEP):
        other = start + tl.arange(0, STEP)
        named = tl.load(loc + other, mask=other < rows, other=0).to(tl.int64)
        highest = tl.where((other < rows) & (named == slot), other, highest)
    element = tl.arange(0, TILE)
    # The highest row alone writes, so that the order of the programs does not matter.
    wins = (element < WIDTH) & (tl.max(highest, 0) == row)
    target = cache + slot * WIDTH + element
    tl.store(target, tl.load(key + row * key_stride + element, mask=wins), mask=wins)
    entry = tl.load(value + row * value_stride + element, mask=wins)
    tl.store(target + plane, entry, mask=wins)


@Kernel
def _attention_kernel(
    output,
    query,
    query_stride,
    cache,
    plane,
    begin,
    end,
    slots,
    sinks,
    masked,
    mask,
    mask_start,
    HAS_SINKS: tl.constexpr,
    SCALE: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    KEYS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    element = tl.arange(0, TILE)
    place = query + row * query_stride + head * DIM + element
    wanted = tl.load(place, mask=element < DIM, other=0.0).to(tl.float32)[None, :]
    peak = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    if HAS_SINKS:
        peak = tl.load(sinks + head)
        total = tl.full((), 1.0, tl.float32)
    totals = tl.full((KEYS,), 0.0, tl.float32)
    mixed = tl.full((KEYS, TILE), 0.0, tl.float32)
    first = tl.load(begin + row)
    last = tl.load(end + row)
    # One kernel with a mask and without: another one might sum in another order.
    has_mask = masked != 0
    bit = mask + tl.load(mask_start + row, mask=has_mask, other=0) - first
    for start in range(first, last, KEYS):
        turn = start + tl.arange(0, KEYS)
        listed = turn < last
        taken = listed & tl.load(bit + turn, mask=listed & has_mask, other=1)
        slot = tl.load(slots + turn, mask=taken, other=0).to(tl.int64)
        entry = cache + ((slot * KV_HEADS + kv_head) * DIM)[:, None] + element[None, :]
        inside = taken[:, None] & (element < DIM)[None, :]
        key = tl.load(entry, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(entry + plane, mask=inside, other=0.0).to(tl.float32)
        score = tl.where(taken, tl.sum(key * wanted, 1) * SCALE, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 0))
        # Before the first key that takes part there is no peak: infinities must not cancel.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp(score - base)
        shrink = tl.exp(peak - base)
        total = total * shrink
        totals = totals * shrink + weight
        mixed = mixed * shrink + weight[:, None] * value
        peak = higher
    total += tl.sum(totals, 0)
    # No key and no sink leaves a total of zero: divide the zeros by one.
    total = tl.where(total == 0.0, 1.0, total)
    result = (tl.sum(mixed, 0) / total).to(output.dtype.element_ty)
    target = output + (row * HEADS + head) * DIM + element
    tl.store(target, result, mask=element < DIM)


class TritonOps(Ops):
    """Ops of one Triton launch each, for CUDA tensors.

    The last axis of every tensor is contiguous. Weights, tables and the cache are
    contiguous whole; activations may be views with a stride of their own per row.
    """

    def _payload(
        self,
        track_table: Tensor,
        track_indices: Tensor,
        track_mask: Tensor,
        positions: Tensor,
        encoder_table: Tensor,
        encoder_lens: Tensor,
    ) -> Tensor:
        rows, hidden = track_indices.shape[0], track_table.shape[1]
        output = track_table.new_empty(rows, hidden, dtype=torch.float32)
        tile = _tile(hidden, TILE_AREA)
        _payload_kernel.launch(
            (rows, _pieces(hidden, tile), 1),
            output,
            track_table,
            track_indices,
            track_mask,
            positions,
            encoder_table,
            encoder_lens,
            HIDDEN=hidden,
            TILE=tile,
        )
        return output

    def _embed(self, table: Tensor, input_ids: Tensor, payload: Tensor) -> Tensor:
        rows, hidden = input_ids.shape[0], table.shape[1]
        output = table.new_empty(rows, hidden)
        tile = _tile(hidden, TILE_AREA)
        _embed_kernel.launch(
            (rows, _pieces(hidden, tile), 1),
            output,
            table,
            input_ids,
            payload,
            payload.stride(0),
            HIDDEN=hidden,
            TILE=tile,
        )
        return output

    def _rotary(self, positions: Tensor, section: Tensor, frequency: Tensor) -> Tensor:
        rows, pairs = positions.shape[1], frequency.shape[0]
        output = frequency.new_empty(2, rows, pairs)
        _rotary_kernel.launch(
            (rows, 1, 1),
            output,
            output.stride(0),
            positions,
            positions.stride(0),
            positions.stride(1),
            section,
            frequency,
            PAIRS=pairs,
            TILE=_tile(pairs, TILE_AREA),
        )
        return output

    def _rope(self, heads: Tensor, rotary: Tensor) -> Tensor:
        rows, count, dim = heads.shape
        output = heads.new_empty(rows, count, dim)
        pair_tile = _tile(dim // 2, TILE_AREA)
        head_tile = _tile(count, TILE_AREA // pair_tile)
        _rope_kernel.launch(
            (rows, _pieces(count, head_tile), 1),
            output,
            heads,
            heads.stride(0),
            rotary,
            rotary.stride(0),
            rotary.stride(1),
            HEADS=count,
            PAIRS=dim // 2,
            HEAD_TILE=head_tile,
            PAIR_TILE=pair_tile,
        )
        return output

    def _norm_linear(self, hidden: Tensor, norm: Tensor, weight: Tensor) -> Tensor:
        rows, outputs = hidden.shape[0], weight.shape[0]
        output = hidden.new_empty(rows, outputs)
        grid, constants = _product(rows, weight)
        _norm_linear_kernel.launch(
            grid, output, hidden, hidden.stride(0), norm, weight, **constants
        )
        return output

    def _linear_add(self, inputs: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        output = residual.new_empty(residual.shape)
        grid, constants = _product(residual.shape[0], weight)
        _linear_add_kernel.launch(
            grid,
            output,
            inputs,
            inputs.stride(0),
            weight,
            residual,
            residual.stride(0),
            **constants,
        )
        return output

    def _gated_linear_add(
        self,
        gate_up: Tensor,
        weight: Tensor,
        residual: Tensor,
        activation: str,
        row_limit: Tensor,
    ) -> Tensor:
        output = residual.new_empty(residual.shape)
        grid, constants = _product(residual.shape[0], weight)
        _gated_linear_add_kernel.launch(
            grid,
            output,
            gate_up,
            gate_up.stride(0),
            weight,
            residual,
            residual.stride(0),
            row_limit,
            GELU=activation == "gelu",
            **constants,
        )
        return output

    def _probabilities(self, logits: Tensor) -> Tensor:
        rows, width = logits.shape
        output = logits.new_empty(rows, width, dtype=torch.float32)
        _probabilities_kernel.launch(
            (rows, 1, 1),
            output,
            logits,
            logits.stride(0),
            WIDTH=width,
            TILE=_tile(width, TILE_AREA),
        )
        return output

    def _store_kv(self, cache: Tensor, loc: Tensor, key: Tensor, value: Tensor) -> None:
        rows, kv_heads, dim = key.shape
        _store_kv_kernel.launch(
            (rows, 1, 1),
            cache,
            cache.stride(0),
            loc,
            rows,
            key,
            key.stride(0),
            value,
            value.stride(0),
            WIDTH=kv_heads * dim,
            TILE=_power_of_2(kv_heads * dim),
        )

    def _attention(
        self,
        query: Tensor,
        cache: Tensor,
        begin: Tensor,
        end: Tensor,
        slots: Tensor,
        sinks: Tensor | None,
        max_keys: int,  # not used: a row's own list says how far its loop runs
        mask: Tensor | None,
        mask_start: Tensor | None,
    ) -> Tensor:
        rows, heads, dim = query.shape
        output = query.new_empty(rows, heads, dim)
        tile = _power_of_2(dim)
        masked = int(mask is not None)
        if mask is None or mask_start is None:  # The kernel wants both, and then reads neither.
            mask = query.new_empty(0, dtype=torch.bool)
            mask_start = query.new_empty(0, dtype=torch.int64)
        _attention_kernel.launch(
            (rows, heads, 1),
            output,
            query,
            query.stride(0),
            cache,
            cache.stride(0),
            begin,
            end,
            slots,
            sinks,
            masked,
            mask,
            mask_start,
            HAS_SINKS=sinks is not None,
            SCALE=dim**-0.5,
            HEADS=heads,
            KV_HEADS=cache.shape[2],
            DIM=dim,
            KEYS=_tile(KEY_TILE, TILE_AREA // tile),
            TILE=tile,
        )
        return output


def _power_of_2(width: int) -> int:
    """Return the smallest power of two that is at least `width`."""
    return 1 << (width - 1).bit_length()


def _pieces(width: int, tile: int) -> int:
    """Return how many tiles cover `width`."""
    return -(-width // tile)


def _tile(width: int, limit: int) -> int:
    """Return the smallest power of two that covers `width`, or `limit` if that is less."""
    return min(_power_of_2(width), limit)


def _product(rows: int, weight: Tensor) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Return the grid and the constants of a product with `weight` [O, I]."""
    pieces, constants = _product_tiles(*weight.shape)
    return (rows, pieces, 1), constants


@cache
def _product_tiles(outputs: int, inputs: int) -> tuple[int, dict[str, int]]:
    """Return how many tiles cover a product's outputs, and its constants."""
    tile = _tile(inputs, INPUT_TILE)
    output_tile = _tile(outputs, TILE_AREA // tile)
    constants = {"OUTPUTS": outputs, "INPUTS": inputs, "OUTPUT_TILE": output_tile, "TILE": tile}
    return _pieces(outputs, output_tile), constants
