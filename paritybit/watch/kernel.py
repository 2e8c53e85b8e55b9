"""The Triton kernel for checksums. It reads each byte of the slots once, as wide words."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# The line above is for the kernel, because values in Triton have no Python types.

from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Alike:
    """Tensors whose slots have the same layout. One launch reads all of them.

    `stride` is the distance of two slots of a block and `apart` that of two blocks, in words.
    """

    addresses: Tensor
    scales: Tensor
    word: torch.dtype
    stride: int
    apart: int
    width: int
    aligned: bool


class Launcher:
    """Launches the kernel over the tensors of a group."""

    def __init__(self, checksums: Checksums) -> None:
        self.device, self.table = checksums.device, checksums.table
        self.parts, self.block = list(alike(checksums)), checksums.block or 0

    def of(self, slots: Tensor) -> Tensor:
        """Return the checksums of some slots, int64 [n]."""
        # 64 bits, because a pool may have more than 2^31 words.
        slots = slots.to(torch.int64).contiguous()
        out = torch.zeros_like(slots)
        for part in self.parts if len(slots) else ():
            columns = min(WIDEST, triton.next_power_of_2(part.width))
            rows = TILE // columns
            tensors = len(part.addresses)
            grid = (triton.cdiv(len(out), rows), triton.cdiv(tensors, TENSORS))
            checksum_kernel[grid](
                part.addresses,
                part.scales,
                self.table(part.width),
                slots,
                out,
                len(out),
                tensors,
                part.stride,
                part.apart,
                part.width,
                BLOCK=self.block,
                WORD=TYPES[part.word],
                ALIGNED=part.aligned,
                ROWS=rows,
                COLUMNS=columns,
                TENSORS=TENSORS,
                num_warps=WARPS,
            )
        return out


def alike(checksums: Checksums) -> Iterable[Alike]:
    """Yield the tensors of a group, grouped by the layout of their slots."""
    found: dict[tuple[torch.dtype, int, int, int, bool], list[tuple[int, int]]] = {}
    for tensor, scale in zip(checksums.tensors, checksums.scales, strict=True):
        viewed = in_place(tensor, checksums.block)
        assert viewed is not None, "the kernel cannot address these slots"
        words, distance = viewed
        row, width, size = words.stride(0), words.shape[1], words.element_size()
        aligned = not any(one % 16 for one in (words.data_ptr(), row * size, distance * size))
        key = (words.dtype, row, distance, width, aligned)
        found.setdefault(key, []).append((words.data_ptr(), scale))
    for (word, stride, distance, width, aligned), members in found.items():
        table = torch.tensor(members, dtype=torch.int64)
        addresses, scales = table.unbind(1)
        device = checksums.device
        yield Alike(
            addresses.contiguous().to(device),
            scales.contiguous().to(device),
            word,
            stride,
            distance,
            width,
            aligned,
        )
