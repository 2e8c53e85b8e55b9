"""Kernels that write and read the index tables of a pool. All tensors are contiguous."""

# mypy: disable-error-code="no-untyped-def"
# Triton's values have no Python types.

import torch
import triton.language as tl
from paritybit.reference.kernels.launch import Kernel
from torch import Tensor

TILE = 128
"""Slots per program."""


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


@Kernel
def read_tables_kernel(
    full_slots,
    swa_slots,
    req_to_token,
    full_to_swa,
    full_cells,
    swa_cells,
    full_count,
    swa_count,
    TILE: tl.constexpr,
):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = place < full_count
    cell = tl.load(full_cells + place, mask=inside, other=0)
    slot = tl.load(req_to_token + cell, mask=inside, other=0).to(tl.int64)
    tl.store(full_slots + place, slot, mask=inside)
    inside = place < swa_count
    cell = tl.load(swa_cells + place, mask=inside, other=0)
    slot = tl.load(req_to_token + cell, mask=inside, other=0).to(tl.int64)
    slot = tl.load(full_to_swa + slot, mask=inside, other=0)
    tl.store(swa_slots + place, slot, mask=inside)


def write(
    req_to_token: Tensor,
    full_to_swa: Tensor,
    rows: Tensor,
    columns: Tensor,
    full: Tensor,
    swa: Tensor,
) -> None:
    """Write as `reference.pool.Tables.write` does, on CUDA in one launch."""
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


def read(
    req_to_token: Tensor, full_to_swa: Tensor, full_cells: Tensor, swa_cells: Tensor
) -> tuple[Tensor, Tensor]:
    """Read as `reference.pool.Tables.read` does, on CUDA in one launch."""
    counts = full_cells.shape[0], swa_cells.shape[0]
    memory = torch.empty(sum(counts), dtype=torch.int64, device=full_cells.device)
    full, swa = memory.split_with_sizes(counts)
    read_tables_kernel.launch(
        (-(-max(counts) // TILE), 1, 1),
        full,
        swa,
        req_to_token,
        full_to_swa,
        full_cells,
        swa_cells,
        *counts,
        TILE=TILE,
    )
    return full, swa
