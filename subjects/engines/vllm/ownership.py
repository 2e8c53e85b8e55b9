"""Who holds which blocks and rows, by the engine's own manager and its tables of requests."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from reference.allocator import Numbers, Owner, Ownership
from reference.config import Kind
from subjects.engines.vllm.requests import VllmRequests, name_of
from subjects.engines.vllm.runner import VllmRunner
from subjects.engines.vllm.settings import BLOCK

NO_ROW = -1
"""The row of a request that the engine's table of requests has lost."""


def ownership(requests: VllmRequests, runner: VllmRunner) -> Ownership:
    """Return who holds what. Both groups take blocks from one pool: a page of either is a block.

    Of each group those blocks may be held that the other does not hold; the null block is in
    neither. A row of a request that has left is free: the engine hears of it with the next batch.
    """
    states, left = runner.runner.req_states, requests.finished | requests.preempted
    free = tuple(islice(_free(requests.manager.block_pool), 2 * requests.plan.num_blocks))
    holders = tuple(
        Owner(
            serial=serial,
            row=states.req_id_to_index.get(name_of(serial), NO_ROW),
            state_slot=0,
            length=tokens,
            page_size=BLOCK,
            full_pages=tuple(requests.blocks_of(serial, Kind.FULL)),
            swa_pages=tuple(block or None for block in requests.blocks_of(serial, Kind.SWA)),
        )
        for serial, tokens in requests.reached.items()
    )
    blocks = range(1, requests.plan.num_blocks)
    full = {page for one in holders for page in one.full_pages}
    swa = {page for one in holders for page in one.swa_pages}
    mapping, table = _tables(holders, runner, requests.plan.num_blocks)
    return Ownership(
        holders=holders,
        all=Numbers(
            full_pages=tuple(block for block in blocks if block not in swa),
            swa_pages=tuple(block for block in blocks if block not in full),
            rows=tuple(runner.rows),
            states=(0,) * len(holders),
        ),
        free_full=free,
        free_swa=free,
        free_rows=(
            *states.free_indices,
            *(row for name, row in states.req_id_to_index.items() if name in left),
        ),
        free_states=(),
        mapping=mapping,
        req_to_token=table,
    )


def _free(pool: Any) -> Iterator[int]:
    """Yield the blocks of the list of free ones, without an end where a block is in it twice."""
    block = pool.free_block_queue.fake_free_list_head.next_free_block
    while block.next_free_block is not None:
        yield block.block_id
        block = block.next_free_block


def _tables(holders: Sequence[Owner], runner: VllmRunner, blocks: int) -> tuple[Tensor, Tensor]:
    """Return which slot of the window group lies beside each full one, and those of each row.

    Both as the engine's table of requests has them; what left a window is 0, as in a world's.
    """
    full, swa = (one.gpu for one in runner.runner.block_tables.block_tables)
    mapping = torch.zeros(blocks * BLOCK + 1, dtype=torch.int64, device=full.device)
    mapping[-1] = -1
    for one in holders:
        kept = torch.tensor([page is not None for page in one.swa_pages], device=full.device)
        pages = full[one.row, : len(kept)].clamp(0, blocks - 1)
        beside = _slots(swa[one.row, : len(kept)])
        mapping[_slots(pages)] = torch.where(kept.repeat_interleave(BLOCK), beside, 0)
    return mapping, _slots(full).view(full.shape[0], -1)


def _slots(blocks: Tensor) -> Tensor:
    """Return the slots of blocks, in order."""
    offsets = torch.arange(BLOCK, device=blocks.device)
    return (blocks.to(torch.int64)[..., None] * BLOCK + offsets).flatten()
