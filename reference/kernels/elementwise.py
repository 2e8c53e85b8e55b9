"""Kernels that work element by element: payload, embedding and rotary positions."""

# mypy: disable-error-code="no-untyped-def"
# The line above is for the kernels: Triton's values have no Python types.

import triton.language as tl

from reference.batch import TRACK_INTERVAL
from reference.kernels.launch import Kernel

INTERVAL = tl.constexpr(TRACK_INTERVAL)


@Kernel
def payload_kernel(
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
def rope_kernel(
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
