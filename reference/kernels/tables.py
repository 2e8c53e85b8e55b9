"""The kernel that writes the index tables of a pool."""

# mypy: disable-error-code="no-untyped-def"
# The line above is for the kernel: Triton's values have no Python types.

import triton.language as tl
from torch import Tensor

from reference.kernels.launch import Kernel

TILE = 128
"""Slots of one program."""


@Kernel
def write_tables_kernel(
    req_to_token,
    stride,
    full_to_swa,
    rows,
    columns,
    full,
    swa,
    count,
    TILE: tl.constexpr,
):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = place < count
    row = tl.load(rows + place, mask=inside, other=0).to(tl.int64)
    column = tl.load(columns + place, mask=inside, other=0)
    slot = tl.load(full + place, mask=inside, other=0)
    swa_slot = tl.load(swa + place, mask=inside, other=0)
    tl.store(req_to_token + row * stride + column, slot.to(tl.int32), mask=inside)
    tl.store(full_to_swa + slot, swa_slot, mask=inside)


def write(
    req_to_token: Tensor,
    full_to_swa: Tensor,
    rows: Tensor,
    columns: Tensor,
    full: Tensor,
    swa: Tensor,
) -> None:
    """Do what `reference.pool.Tables.write` does, on CUDA by one launch; all are contiguous."""
    count = rows.shape[0]
    write_tables_kernel.launch(
        (-(-count // TILE), 1, 1),
        req_to_token,
        req_to_token.stride(0),
        full_to_swa,
        rows,
        columns,
        full,
        swa,
        count,
        TILE=TILE,
    )
