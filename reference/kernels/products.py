"""Kernels that multiply by a weight."""

# mypy: disable-error-code="no-untyped-def"
# Triton's values have no Python types.

import triton.language as tl
from paritybit.reference.kernels.launch import Kernel, jit
from paritybit.reference.torch_ops import GELU_CUBE, GELU_SCALE, NORM_EPSILON

EPSILON = tl.constexpr(NORM_EPSILON)
CUBE = tl.constexpr(GELU_CUBE)
LOGISTIC = tl.constexpr(GELU_SCALE)


@jit
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


@jit
def _norm_scale(source, INPUTS: tl.constexpr, TILE: tl.constexpr):
    square = tl.full((TILE,), 0.0, tl.float32)
    for start in range(0, INPUTS, TILE):
        column = start + tl.arange(0, TILE)
        value = tl.load(source + column, mask=column < INPUTS, other=0.0).to(tl.float32)
        square += value * value
    return tl.rsqrt(tl.sum(square, 0) / INPUTS + EPSILON)


@Kernel
def norm_linear_kernel(
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
    scale = _norm_scale(source, INPUTS, TILE)
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
def project_heads_kernel(
    output,
    hidden,
    hidden_stride,
    norm,
    weight,
    rotary,
    rotary_plane,
    rotary_stride,
    turned,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    PAIRS: tl.constexpr,
    PAIR_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    # A pair is two features of one head, half the head's width apart.
    pair = tl.program_id(1) * PAIR_TILE + tl.arange(0, PAIR_TILE)
    head = pair // PAIRS
    within = pair - head * PAIRS
    first = head * (2 * PAIRS) + within
    second = first + PAIRS
    source = hidden + row * hidden_stride
    scale = _norm_scale(source, INPUTS, TILE)
    firsts = tl.full((PAIR_TILE, TILE), 0.0, tl.float32)
    seconds = tl.full((PAIR_TILE, TILE), 0.0, tl.float32)
    for start in range(0, INPUTS, TILE):
        column = start + tl.arange(0, TILE)
        value = tl.load(source + column, mask=column < INPUTS, other=0.0).to(tl.float32)
        gain = tl.load(norm + column, mask=column < INPUTS, other=0.0).to(tl.float32)
        product = (value * scale * gain)[None, :]
        firsts += _weight_tile(weight, first, column, OUTPUTS, INPUTS) * product
        seconds += _weight_tile(weight, second, column, OUTPUTS, INPUTS) * product
    left, right = tl.sum(firsts, 1), tl.sum(seconds, 1)
    turns = head < turned
    angle = rotary + row * rotary_stride + within
    cosine = tl.load(angle, mask=turns, other=1.0)
    sine = tl.load(angle + rotary_plane, mask=turns, other=0.0)
    target = output + row * OUTPUTS + first
    dtype = output.dtype.element_ty
    inside = first < OUTPUTS
    found = tl.where(turns, left * cosine - right * sine, left)
    tl.store(target, found.to(dtype), mask=inside)
    found = tl.where(turns, right * cosine + left * sine, right)
    tl.store(target + PAIRS, found.to(dtype), mask=inside)


@Kernel
def linear_add_kernel(
    output,
    inputs,
    input_stride,
    weight,
    residual,
    residual_stride,
    row_limit,
    GATED: tl.constexpr,
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
        place = inputs + row * input_stride + column
        value = tl.load(place, mask=column < INPUTS, other=0.0).to(tl.float32)
        if GATED:
            up = tl.load(place + INPUTS, mask=column < INPUTS, other=0.0).to(tl.float32)
            exponent = value
            if GELU:
                exponent = (value + value * value * value * CUBE) * LOGISTIC
            value = value / (1.0 + tl.exp(-exponent)) * up
        total += _weight_tile(weight, feature, column, OUTPUTS, INPUTS) * value[None, :]
    wanted = feature < OUTPUTS
    kept = tl.load(residual + row * residual_stride + feature, mask=wanted, other=0.0)
    result = (kept.to(tl.float32) + tl.sum(total, 1)).to(output.dtype.element_ty)
    if GATED:
        result = tl.where(row < tl.load(row_limit), result, kept)
    tl.store(output + row * OUTPUTS + feature, result, mask=wanted)
