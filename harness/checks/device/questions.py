"""Kernels that each answer one question of a property, in place of a dozen launches of ops.

The kernels of a step share one int32 tensor, `asked`. It has the host's numbers for each kernel,
and an answer per question: 0 at first, and 1 after any program has found an error.
"""

# mypy: disable-error-code="no-untyped-def"
# The line above is for the kernels: Triton's values have no Python types.

import triton.language as tl
from paritybit.harness.checks.counted_reads import AS_OFTEN
from paritybit.harness.checks.device.unequal import ENTRY
from paritybit.reference.kernels.launch import Kernel, jit

ALLOWANCE = tl.constexpr(AS_OFTEN // 2)
"""A threshold for cells after the reads of a row were subtracted.

A cell that may be read any number of times started at AS_OFTEN and is still above. A cell with a
required count started below, and is 0 if the count is right.
"""

LENGTH = tl.constexpr(ENTRY)
"""The size of the entry of a pair."""

PLACE_BITS = 24
"""Bits for the slot or place in an element's number in `strayed_kernel`. Higher bits: its part."""

SHIFT = tl.constexpr(PLACE_BITS)
PLACES = tl.constexpr(2**PLACE_BITS - 1)


@Kernel
def tables_kernel(
    asked,
    first,
    answer,
    mapping,
    rows,
    other_mapping,
    other_rows,
    mapped,
    count,
    WORLDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Answer whether a cell of the tables of one or two worlds is wrong.

    From `first` on, `asked` has int32 [3, count]: the required value, a permitted other value, and
    whether the value is known. The cells of the mapping come before those of the rows.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    cells = asked + first + place
    right = tl.load(cells, mask=inside, other=0).to(tl.int64)
    also = tl.load(cells + count, mask=inside, other=0).to(tl.int64)
    known = tl.load(cells + 2 * count, mask=inside, other=0) != 0
    held = _cell(mapping, rows, place, inside, mapped)
    wrong = (held != right) & (held != also)
    if WORLDS == 2:
        held = _cell(other_mapping, other_rows, place, inside, mapped)
        wrong |= (held != right) & (held != also)
    if tl.max((wrong & known).to(tl.int32), 0) > 0:
        tl.store(asked + answer, 1)


@jit
def _cell(mapping, rows, place, inside, mapped):
    """Return the value of a cell of the mapping or, after its end, of `req_to_token`."""
    of_mapping = tl.load(mapping + place, mask=inside & (place < mapped), other=0).to(tl.int64)
    of_rows = tl.load(rows + place - mapped, mask=inside & (place >= mapped), other=0).to(tl.int64)
    return of_mapping + of_rows


@Kernel
def reads_kernel(
    asked,
    first,
    answer,
    mask,
    mask_length,
    full_rows,
    full_begin,
    full_end,
    full_slots,
    full_mask_start,
    full_listed,
    full_length,
    swa_begin,
    swa_end,
    swa_slots,
    swa_mask_start,
    swa_listed,
    swa_length,
    FULL_MASKED: tl.constexpr,
    SWA_MASKED: tl.constexpr,
    FULL_WIDTH: tl.constexpr,
    SWA_WIDTH: tl.constexpr,
    CELLS: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Answer whether a row reads any slot too often or not often enough.

    There is a program per row. The first `full_rows` rows belong to the full sub-pool. In each
    sub-pool, the first `listed` rows have a list. From `first` on, `asked` has the required counts,
    int32 [rows, CELLS]: see `counted_reads.counted`. Each key that a row reads subtracts one.
    """
    row = tl.program_id(0)
    cells = asked + first + row.to(tl.int64) * CELLS
    if row < full_rows:
        if row < full_listed:
            keys = (full_begin + row, full_end + row, full_slots, full_length)
            bits = (full_mask_start + row, mask, mask_length)
            _take_away(cells, keys, bits, FULL_MASKED, FULL_WIDTH, MOST, BLOCK)
    elif row - full_rows < swa_listed:
        other = row - full_rows
        other_keys = (swa_begin + other, swa_end + other, swa_slots, swa_length)
        other_bits = (swa_mask_start + other, mask, mask_length)
        _take_away(cells, other_keys, other_bits, SWA_MASKED, SWA_WIDTH, MOST, BLOCK)
    # All subtractions must be visible before any cell is read.
    tl.debug_barrier()
    for turn in range(0, CELLS, BLOCK):
        cell = turn + tl.arange(0, BLOCK)
        # Bypasses the L1 cache, as the atomic subtractions do.
        number = tl.load(cells + cell, mask=cell < CELLS, other=0, cache_modifier=".cg")
        if tl.max(((number != 0) & (number < ALLOWANCE)).to(tl.int32), 0) > 0:
            tl.store(asked + answer, 1)


@jit
def _take_away(
    cells,
    keys,
    bits,
    MASKED: tl.constexpr,
    WIDTH: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Subtract one from a row's cells for each key, begin to end - 1, that it reads."""
    begin, end, slots, length = keys
    mask_start, mask, mask_length = bits
    start = tl.load(begin).to(tl.int64)
    stop = tl.load(end).to(tl.int64)
    for turn in range(0, MOST + 1, BLOCK):
        key = turn + tl.arange(0, BLOCK)
        read = (key <= MOST) & (start + key < stop)
        if MASKED:
            bit = tl.load(mask_start).to(tl.int64) + key
            bit = tl.minimum(tl.maximum(bit, 0), mask_length - 1)
            read &= tl.load(mask + bit, mask=read, other=0) != 0
        place = tl.minimum(tl.maximum(start + key, 0), length - 1)
        slot = tl.load(slots + place, mask=read, other=0).to(tl.int64)
        column = tl.minimum(tl.maximum(slot, -1), WIDTH)
        # The last key is one more than a row can have, so it never counts as a slot.
        column = tl.where(key == MOST, WIDTH, column)
        tl.atomic_add(cells + column + 1, tl.full((BLOCK,), -1, tl.int32), mask=read)


@Kernel
def strayed_kernel(
    asked,
    answer,
    numbers,
    compared,
    before,
    after,
    mapping,
    locations,
    tokens,
    places,
    requests,
    other_before,
    other_after,
    other_mapping,
    other_locations,
    other_tokens,
    other_places,
    other_requests,
    elements,
    mapped,
    full_part,
    swa_part,
    place_part,
    FULL_SLOTS: tl.constexpr,
    SWA_SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Answer whether one of two worlds changed a compared element outside the step's frame.

    `numbers`, int32 [elements], has the part of the storage for each element, and its slot or
    place there. A step may change its `locations` in the parts `full_part` and `swa_part`, and its
    `places` in `place_part`. The second axis of the grid is the world.
    """
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    judged = tl.load(compared + element, mask=element < elements, other=0) != 0
    asks = (asked + answer, numbers, element, judged)
    parts = (mapped, full_part, swa_part, place_part)
    if tl.program_id(1) == 0:
        held = (before, after, mapping)
        frame = (locations, tokens, places, requests)
        _find_stray(asks, held, frame, parts, FULL_SLOTS, SWA_SLOTS)
    else:
        other_held = (other_before, other_after, other_mapping)
        other_frame = (other_locations, other_tokens, other_places, other_requests)
        _find_stray(asks, other_held, other_frame, parts, FULL_SLOTS, SWA_SLOTS)


@jit
def _find_stray(asks, held, frame, parts, FULL_SLOTS: tl.constexpr, SWA_SLOTS: tl.constexpr):
    """Answer the question of `strayed_kernel` for one world."""
    answer, numbers, element, judged = asks
    before, after, mapping = held
    locations, tokens, places, requests = frame
    mapped, full_part, swa_part, place_part = parts
    was = tl.load(before + element, mask=judged, other=0)
    changed = judged & (was != tl.load(after + element, mask=judged, other=0))
    if tl.max(changed.to(tl.int32), 0) > 0:
        number = tl.load(numbers + element, mask=changed, other=0)
        part = number >> SHIFT
        place = number & PLACES
        turn = 0
        while turn < tokens:
            full = tl.load(locations + turn).to(tl.int64)
            swa = tl.load(mapping + _from_behind(full, mapped)).to(tl.int64)
            changed &= (part != full_part) | (place != _from_behind(full, FULL_SLOTS))
            changed &= (part != swa_part) | (place != _from_behind(swa, SWA_SLOTS))
            turn += 1
        turn = 0
        while turn < requests:
            own = tl.load(places + turn).to(tl.int64)
            changed &= (part != place_part) | (place != own)
            turn += 1
        if tl.max(changed.to(tl.int32), 0) > 0:
            tl.store(answer, 1)


@jit
def _from_behind(index, count):
    """Return a non-negative index. A negative index counts from the end."""
    return tl.where(index < 0, index + count, index)


@Kernel
def unequal_kernel(asked, answers, BLOCK: tl.constexpr):
    """Answer for each pair of tensors whether they differ in any bit: see `entries_of`.

    If the elements of the second tensor are wider, it is compared after a conversion to the dtype
    of the first. `asked` begins with the entries, and has the answers from `answers` on.
    """
    entry = asked.to(tl.pointer_type(tl.int64), bitcast=True) + tl.program_id(0) * LENGTH
    one = tl.load(entry)
    other = tl.load(entry + 1)
    count = tl.load(entry + 2)
    columns = tl.load(entry + 3)
    one_stride = tl.load(entry + 4)
    other_stride = tl.load(entry + 5)
    sizes = tl.load(entry + 6)
    compared = tl.load(entry + 7)
    size = sizes >> 4
    other_size = sizes & 15
    first = tl.program_id(1).to(tl.int64) * BLOCK
    while first < count:
        element = first + tl.arange(0, BLOCK)
        inside = element < count
        masked = inside & (compared != 0)
        inside &= (compared == 0) | (_whole_number(compared, element, 1, masked) != 0)
        row = element // columns
        column = element % columns
        left = _whole_number(one, row * one_stride + column, size, inside)
        right = _whole_number(other, row * other_stride + column, other_size, inside)
        right = tl.where(size == 4, right.to(tl.int32).to(tl.int64), right)
        if tl.max((left != right).to(tl.int32), 0) > 0:
            tl.store(asked + answers + tl.load(entry + 8), 1)
        first += tl.num_programs(1) * BLOCK


@jit
def _whole_number(address, place, size, inside):
    """Return the bits of elements with 1, 2, 4 or 8 bytes from an address on, and 0 outside."""
    bytes_ = address.to(tl.pointer_type(tl.int8))
    halves = address.to(tl.pointer_type(tl.int16))
    words = address.to(tl.pointer_type(tl.int32))
    long = address.to(tl.pointer_type(tl.int64))
    found = tl.load(bytes_ + place, mask=inside & (size == 1), other=0).to(tl.int64)
    found += tl.load(halves + place, mask=inside & (size == 2), other=0).to(tl.int64)
    found += tl.load(words + place, mask=inside & (size == 4), other=0).to(tl.int64)
    return found + tl.load(long + place, mask=inside & (size == 8), other=0)
