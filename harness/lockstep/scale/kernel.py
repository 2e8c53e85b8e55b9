"""The kernel that compares two storages. It reads each byte of both once, as wide words.

Words that differ are read again, element by element.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# The line above is for the kernel: Triton's values have no Python types.

import triton
import triton.language as tl
from paritybit.harness.lockstep.scale import comparison

NOWHERE = tl.constexpr(comparison.NOWHERE)
OUTSIDE = tl.constexpr(comparison.OUTSIDE)
RESERVED = tl.constexpr(comparison.RESERVED)

BLOCK = 2048
"""Words that one program compares: 16 KiB of each storage for 64-bit words."""

WARPS = 16


@triton.jit
def compare_kernel(
    one_words,
    other_words,
    one,
    other,
    marks,
    found,
    words: tl.int64,
    elements: tl.int64,
    slots: tl.int64,
    width: tl.int64,
    PER_WORD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # 64 bits before the multiplication, because a pool has more than 2^31 elements.
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    inside = offset < words - first
    left_words = tl.load(one_words + first + offset, mask=inside, other=0)
    right_words = tl.load(other_words + first + offset, mask=inside, other=0)
    # Elements and marks are read only if a word differs, which is rare.
    if tl.max((left_words != right_words).to(tl.int32), 0) > 0:
        for part in range(PER_WORD):
            place = first * PER_WORD + part * BLOCK + offset
            within = place < elements
            left = tl.load(one + place, mask=within, other=0)
            right = tl.load(other + place, mask=within, other=0)
            differs = left != right
            mark = tl.load(marks + (place // width) % slots, mask=within, other=RESERVED)
            compared = differs & (mark != RESERVED)
            outside = differs & (mark == OUTSIDE)
            tl.atomic_add(found, tl.sum(compared.to(tl.int64), 0))
            tl.atomic_add(found + 1, tl.sum(outside.to(tl.int64), 0))
            tl.atomic_min(found + 2, tl.min(tl.where(compared, place, NOWHERE), 0))
            tl.atomic_min(found + 3, tl.min(tl.where(outside, place, NOWHERE), 0))
