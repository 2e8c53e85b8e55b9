"""The kernel that compares two storages: it reads each byte of both once."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# The line above is for the kernel: Triton's values have no Python types.

import triton
import triton.language as tl

NOWHERE = 2**62
"""The first place where nothing differs."""

FAR = tl.constexpr(NOWHERE)
RESERVED = tl.constexpr(2)

BLOCK = 8192
"""Elements that one program compares."""


@triton.jit
def compare_kernel(
    one,
    other,
    marks,
    found,
    elements: tl.int64,
    slots: tl.int64,
    width: tl.int64,
    BLOCK: tl.constexpr,
):
    # 64 bits wide before it is multiplied: a pool has more than 2^31 elements.
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = first + tl.arange(0, BLOCK)
    inside = place < elements
    left = tl.load(one + place, mask=inside, other=0)
    right = tl.load(other + place, mask=inside, other=0)
    differs = left != right
    # Marks are looked up where something differs: hardly ever.
    if tl.max(differs.to(tl.int32), 0) > 0:
        mark = tl.load(marks + (place // width) % slots, mask=inside, other=RESERVED)
        compared = differs & (mark != RESERVED)
        outside = differs & (mark == 0)
        tl.atomic_add(found, tl.sum(compared.to(tl.int64), 0))
        tl.atomic_add(found + 1, tl.sum(outside.to(tl.int64), 0))
        tl.atomic_min(found + 2, tl.min(tl.where(compared, place, FAR), 0))
        tl.atomic_min(found + 3, tl.min(tl.where(outside, place, FAR), 0))
