"""The lists for drafts to verify, on CUDA in one launch each: see `subjects.key_lists`.

Indices may have any width. Index tensors, the page table and the mask are contiguous.
"""

# mypy: disable-error-code="no-untyped-def"
# Triton's values have no Python types.

import torch
import triton.language as tl
from paritybit.reference.config import SPECULATION
from paritybit.reference.kernels.launch import Kernel
from torch import Tensor

TILE = 128
"""Requests, columns or tokens per step of a program."""

DRAFTS = tl.constexpr(SPECULATION.draft_tokens)
NODES = tl.constexpr(1 << (SPECULATION.draft_tokens - 1).bit_length())


@Kernel
def tree_lists_kernel(
    page_table,
    offsets,
    key_begin,
    key_end,
    window_key_begin,
    window_key_end,
    mask_indptr,
    rows,
    seq_lens,
    positions,
    table,
    columns,
    table_stride,
    window,
    TILE: tl.constexpr,
):
    request = tl.program_id(0)
    before = tl.full((), 0, tl.int32)
    start = 0
    while start < request:
        other = start + tl.arange(0, TILE)
        length = tl.load(seq_lens + other, mask=other < request, other=-DRAFTS).to(tl.int32)
        before += tl.sum(length + DRAFTS, 0)
        start += TILE
    length = tl.load(seq_lens + request).to(tl.int32)
    end = length + DRAFTS
    offset = tl.maximum(length - window + 1, 0)
    tl.store(offsets + request, offset.to(tl.int64))

    width = window - 1 + DRAFTS
    source = table + tl.load(rows + request).to(tl.int64) * table_stride
    start = 0
    while start < width:
        place = start + tl.arange(0, TILE)
        column = offset + place
        listed = (place < width) & (column < end)
        slot = tl.load(source + tl.minimum(column, columns - 1), mask=listed, other=0)
        tl.store(page_table + request * width + place, slot, mask=place < width)
        start += TILE

    node = tl.arange(0, NODES)
    token, inside = request * DRAFTS + node, node < DRAFTS
    position = tl.load(positions + token, mask=inside, other=0).to(tl.int32)
    # The place of the request's column 0, even if the page table does not contain it.
    origin = request * width - offset
    tl.store(key_begin + token, before + node * 0, mask=inside)
    tl.store(key_end + token, before + end + node * 0, mask=inside)
    begin = origin + tl.maximum(position - window + 1, 0)
    tl.store(window_key_begin + token, begin, mask=inside)
    tl.store(window_key_end + token, origin + end + node * 0, mask=inside)
    bit = before.to(tl.int64) * DRAFTS + node.to(tl.int64) * end
    tl.store(mask_indptr + token, bit, mask=inside)


@Kernel
def tree_keys_kernel(
    slots,
    mask_start,
    page_table,
    offsets,
    begin,
    mask_indptr,
    listed,
    tokens,
    width,
    TILE: tl.constexpr,
):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    slot = tl.load(page_table + place, mask=place < listed, other=0).to(tl.int64)
    tl.store(slots + place, slot, mask=place < listed)
    inside = place < tokens
    request = place // DRAFTS
    skipped = tl.load(begin + place, mask=inside, other=0).to(tl.int64) - request * width
    skipped += tl.load(offsets + request, mask=inside, other=0).to(tl.int64)
    bit = tl.load(mask_indptr + place, mask=inside, other=0).to(tl.int64)
    tl.store(mask_start + place, bit + skipped, mask=inside)


def tree_lists(
    rows: Tensor, seq_lens: Tensor, positions: Tensor, window: int, table: Tensor
) -> dict[str, Tensor]:
    """Compute `subjects.key_lists.tree_lists` on CUDA."""
    requests, tokens = seq_lens.shape[0], positions.shape[0]
    width = window - 1 + SPECULATION.draft_tokens
    narrow, wide = [requests * width, *[tokens] * 4], [requests, tokens]
    memory = torch.empty(sum(narrow), dtype=torch.int32, device=rows.device)
    page_table, *ends = memory.split_with_sizes(narrow)
    memory = torch.empty(sum(wide), dtype=torch.int64, device=rows.device)
    offsets, mask_indptr = memory.split_with_sizes(wide)
    tree_lists_kernel.launch(
        (requests, 1, 1),
        page_table,
        offsets,
        *ends,
        mask_indptr,
        rows,
        seq_lens,
        positions,
        table,
        table.shape[1],
        table.stride(0),
        window,
        TILE=TILE,
    )
    names = "key_begin", "key_end", "window_key_begin", "window_key_end"
    lists = {"swa_page_table": page_table, "window_kv_offsets": offsets}
    return {**lists, **dict(zip(names, ends, strict=True)), "mask_indptr": mask_indptr}


def tree_keys(
    page_table: Tensor, offsets: Tensor, begin: Tensor, mask_indptr: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Compute `subjects.key_lists.tree_keys` on CUDA."""
    listed, tokens = page_table.shape[0], begin.shape[0]
    memory = torch.empty(listed + tokens, dtype=torch.int64, device=begin.device)
    slots, mask_start = memory.split_with_sizes((listed, tokens))
    tree_keys_kernel.launch(
        (-(-max(listed, tokens) // TILE), 1, 1),
        slots,
        mask_start,
        page_table,
        offsets,
        begin,
        mask_indptr,
        listed,
        tokens,
        width,
        TILE=TILE,
    )
    return slots, mask_start
