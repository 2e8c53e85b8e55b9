"""Kernels for the KV cache and the tables beside it: stores and attention.

Slots are converted to 64 bits before a multiplication, and the distance from K to V is 64 bits
wide, because a pool of real size has more than 2^31 elements. The type is declared: a kernel that
is compiled once would otherwise keep the width of its first value.
"""

# mypy: disable-error-code="no-untyped-def"
# Triton's values have no Python types.

import triton.language as tl
from paritybit.reference.kernels.launch import Kernel, jit

LOC_TILE = 64  # locs per step of a store

STEP = tl.constexpr(LOC_TILE)


@jit
def _last_of(names, count, name):
    """Return the last of `count` places that contains `name`.

    Only that row writes, so the order of the programs does not matter.
    """
    highest = tl.full((STEP,), -1, tl.int32)
    start = 0
    while start < count:
        other = start + tl.arange(0, STEP)
        named = tl.load(names + other, mask=other < count, other=0).to(tl.int64)
        highest = tl.where((other < count) & (named == name), other, highest)
        start += STEP
    return tl.max(highest, 0)


@Kernel
def store_kv_kernel(
    cache,
    plane: tl.int64,
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
    element = tl.arange(0, TILE)
    wins = (element < WIDTH) & (_last_of(loc, rows, slot) == row)
    target = cache + slot * WIDTH + element
    tl.store(target, tl.load(key + row * key_stride + element, mask=wins), mask=wins)
    entry = tl.load(value + row * value_stride + element, mask=wins)
    tl.store(target + plane, entry, mask=wins)


@Kernel
def store_rows_kernel(
    table,
    rows,
    count,
    values,
    values_stride,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + place).to(tl.int64)
    element = tl.arange(0, TILE)
    wins = (element < WIDTH) & (_last_of(rows, count, row) == place)
    entry = tl.load(values + place * values_stride + element, mask=wins)
    tl.store(table + row * WIDTH + element, entry, mask=wins)


@jit
def _entries(
    cache,
    plane,
    slots,
    turn,
    taken,
    kv_head,
    element,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
):
    slot = tl.load(slots + turn, mask=taken, other=0).to(tl.int64)
    entry = cache + ((slot * KV_HEADS + kv_head) * DIM)[:, None] + element[None, :]
    inside = taken[:, None] & (element < DIM)[None, :]
    key = tl.load(entry, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(entry + plane, mask=inside, other=0.0).to(tl.float32)
    return key, value


@Kernel
def attention_kernel(
    output,
    query,
    query_stride,
    cache,
    plane: tl.int64,
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
    start, last = tl.load(begin + row), tl.load(end + row)
    # One kernel for both cases, because two might sum in different orders.
    has_mask = masked != 0
    bit = mask + tl.load(mask_start + row, mask=has_mask, other=0) - start
    while start < last:
        turn = start + tl.arange(0, KEYS)
        listed = turn < last
        taken = listed & tl.load(bit + turn, mask=listed & has_mask, other=1)
        key, value = _entries(cache, plane, slots, turn, taken, kv_head, element, KV_HEADS, DIM)
        score = tl.where(taken, tl.sum(key * wanted, 1) * SCALE, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 0))
        # There is no peak before the first key that takes part: avoid inf - inf.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp(score - base)
        shrink = tl.exp(peak - base)
        total = total * shrink
        totals = totals * shrink + weight
        mixed = mixed * shrink + weight[:, None] * value
        peak = higher
        start += KEYS
    total += tl.sum(totals, 0)
    # Without a key and a sink the total is zero: divide zeros by one.
    total = tl.where(total == 0.0, 1.0, total)
    result = (tl.sum(mixed, 0) / total).to(output.dtype.element_ty)
    target = output + (row * HEADS + head) * DIM + element
    tl.store(target, result, mask=element < DIM)
