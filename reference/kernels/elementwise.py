"""Elementwise kernels: states, payload, embedding, rotary positions, row limits."""

# mypy: disable-error-code="no-untyped-def"
# Triton's values have no Python types.

import triton.language as tl
from paritybit.reference.kernels.launch import Kernel
from paritybit.reference.ops import STATE_GAIN

GAIN = tl.constexpr(STATE_GAIN)


@Kernel
def scan_states_kernel(
    output,
    states,
    sources,
    parents,
    table,
    input_ids,
    decay,
    tokens,
    HIDDEN: tl.constexpr,
    TILE: tl.constexpr,
):
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < HIDDEN
    kept = tl.load(decay + column, mask=inside, other=0.0)
    first = tl.program_id(0).to(tl.int64) * tokens
    # Triton's interpreter does not support `range` of a run-time value.
    turn = 0
    while turn < tokens:
        row = first + turn
        source = tl.load(sources + row).to(tl.int64)
        parent = tl.load(parents + row).to(tl.int64)
        follows = inside & (parent >= 0)
        begins = inside & (parent < 0) & (source >= 0)
        before = tl.load(output + parent * HIDDEN + column, mask=follows, other=0.0).to(tl.float32)
        before += tl.load(states + source * HIDDEN + column, mask=begins, other=0.0).to(tl.float32)
        token = tl.load(input_ids + row).to(tl.int64) * HIDDEN + column
        added = tl.load(table + token, mask=inside, other=0.0).to(tl.float32) * GAIN
        after = (added + kept * before).to(output.dtype.element_ty)
        tl.store(output + row * HIDDEN + column, after, mask=inside)
        # All threads must see this token's state before the next token loads it.
        tl.debug_barrier()
        turn += 1


@Kernel
def payload_kernel(
    output,
    states,
    state_mask,
    encoder_table,
    encoder_lens,
    HIDDEN: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < HIDDEN
    taken = inside & tl.load(state_mask + row)
    encoder = tl.load(encoder_lens + row).to(tl.int64) * HIDDEN + column
    total = tl.load(states + row * HIDDEN + column, mask=taken, other=0.0).to(tl.float32)
    total += tl.load(encoder_table + encoder, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + row * HIDDEN + column, total, mask=inside)


@Kernel
def embed_kernel(
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
def rotary_kernel(
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
def limit_rows_kernel(
    output,
    rows,
    rows_stride,
    row_limit,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < WIDTH
    kept = inside & (row < tl.load(row_limit))
    value = tl.load(rows + row * rows_stride + column, mask=kept, other=0.0)
    tl.store(output + row * WIDTH + column, value, mask=inside)
