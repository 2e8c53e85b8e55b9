"""The Triton kernel for checksums. It reads each byte of the slots once, as wide words."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# The line above is for the kernel, because values in Triton have no Python types.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from paritybit.watch.bits import Checksums, in_place

TILE = 2048
"""Number of words that one program multiplies at once: 16 KiB for words of 64 bits."""

WIDEST = 512
"""The most words of one slot in a tile."""

TENSORS = 8
"""Number of tensors that one program reads before it adds to the checksums."""

WARPS = 4

TYPES = {
    torch.int64: tl.int64,
    torch.int32: tl.int32,
    torch.int16: tl.int16,
    torch.uint8: tl.uint8,
}


@triton.jit
def checksum_kernel(
    addresses,
    scales,
    table,
    slots,
    out,
    count,
    tensors,
    stride: tl.int64,
    apart: tl.int64,
    width,
    BLOCK: tl.constexpr,
    WORD: tl.constexpr,
    ALIGNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TENSORS: tl.constexpr,
):
    entry = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = entry < count
    slot = tl.load(slots + entry, mask=inside, other=0)
    if BLOCK == 0:  # noqa: SIM108 - Triton compiles one branch alone
        place = slot * stride
    else:
        place = slot // BLOCK * apart + slot % BLOCK * stride
    total = tl.zeros([ROWS, COLUMNS], tl.int64)
    begin = tl.program_id(1) * TENSORS
    for tensor in range(begin, tl.minimum(begin + TENSORS, tensors)):
        address = tl.load(addresses + tensor)
        if ALIGNED:
            address = tl.multiple_of(address, 16)
        words = address.to(tl.pointer_type(WORD))
        scale = tl.load(scales + tensor)
        for left in range(0, width, COLUMNS):
            column = left + tl.arange(0, COLUMNS)
            factor = tl.load(table + column, mask=column < width, other=0) * scale
            mask = inside[:, None] & (column < width)[None, :]
            word = tl.load(words + place[:, None] + column[None, :], mask=mask, other=0)
            word = word.to(tl.int64)
            total += (word ^ ((word >> 32) & 0xFFFFFFFF)) * factor[None, :]
    tl.atomic_add(out + entry, tl.sum(total, 1), mask=inside)


class Layout(NamedTuple):
    """The layout of the slots of tensors that one launch reads.

    `stride` is the distance of two slots of a block and `apart` that of two blocks, in words.
    """

    word: torch.dtype
    stride: int
    apart: int
    width: int
    aligned: bool


class Launcher:
    """Launches the kernel over the tensors of a group."""

    def __init__(self, checksums: Checksums) -> None:
        self.table, self.block = checksums.table, checksums.block or 0
        alike: dict[Layout, list[tuple[int, int]]] = {}
        for tensor, scale in zip(checksums.tensors, checksums.scales, strict=True):
            viewed = in_place(tensor, checksums.block)
            assert viewed is not None, "the kernel cannot address these slots"
            words, apart = viewed
            address, stride, size = words.data_ptr(), words.stride(0), words.element_size()
            aligned = not any(one % 16 for one in (address, stride * size, apart * size))
            layout = Layout(words.dtype, stride, apart, words.shape[1], aligned)
            alike.setdefault(layout, []).append((address, scale))
        self.parts = {
            layout: torch.tensor(members, dtype=torch.int64).T.contiguous().to(checksums.device)
            for layout, members in alike.items()
        }
        """The addresses and the scales of the tensors with each layout, int64 [2, n]."""

    def of(self, slots: Tensor) -> Tensor:
        """Return the checksums of some slots, int64 [n]."""
        # 64 bits, because a pool may have more than 2^31 words.
        slots = slots.to(torch.int64).contiguous()
        out = torch.zeros_like(slots)
        for layout, (addresses, scales) in self.parts.items() if len(slots) else ():
            columns = min(WIDEST, triton.next_power_of_2(layout.width))
            rows = TILE // columns
            tensors = len(addresses)
            grid = (triton.cdiv(len(out), rows), triton.cdiv(tensors, TENSORS))
            checksum_kernel[grid](
                addresses,
                scales,
                self.table(layout.width),
                slots,
                out,
                len(out),
                tensors,
                layout.stride,
                layout.apart,
                layout.width,
                BLOCK=self.block,
                WORD=TYPES[layout.word],
                ALIGNED=layout.aligned,
                ROWS=rows,
                COLUMNS=columns,
                TENSORS=TENSORS,
                num_warps=WARPS,
            )
        return out
