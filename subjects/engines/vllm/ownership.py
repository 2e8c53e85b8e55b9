"""Who holds which blocks and rows, by the engine's own manager and its tables of requests."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from reference.allocator import Owner, Ownership
from reference.config import Kind
from subjects.engines.shared.blocks import ownership_of
from subjects.engines.vllm.requests import VllmRequests, name_of
from subjects.engines.vllm.runner import VllmRunner
from subjects.engines.vllm.settings import BLOCK, GROUPS

NO_ROW = -1
"""The row of a request that the engine's table of requests has lost."""


def ownership(requests: VllmRequests, runner: VllmRunner) -> Ownership:
    """Return who holds what.

    A row of a request that has left is free: the engine hears of it with the next batch.
    """
    states, left = runner.runner.req_states, requests.finished | requests.preempted
    rows = states.req_id_to_index
    holders = tuple(
        Owner(
            serial=serial,
            row=rows.get(name_of(serial), NO_ROW),
            state_slot=0,
            length=tokens,
            page_size=BLOCK,
            full_pages=tuple(requests.blocks_of(serial, Kind.FULL)),
            swa_pages=tuple(block or None for block in requests.blocks_of(serial, Kind.SWA)),
        )
        for serial, tokens in requests.reached.items()
    )
    blocks, tables = requests.plan.num_blocks, runner.runner.block_tables.block_tables
    return ownership_of(
        holders,
        blocks,
        BLOCK,
        tuple(islice(_free(requests.manager.block_pool), 2 * blocks)),
        tuple(runner.rows),
        (*states.free_indices, *(rows[name] for name in rows if name in left)),
        {kind: one.gpu for kind, one in zip(GROUPS, tables, strict=True)},
    )


def _free(pool: Any) -> Iterator[int]:
    """Yield the blocks of the list of free ones, without an end where a block is in it twice."""
    block = pool.free_block_queue.fake_free_list_head.next_free_block
    while block.next_free_block is not None:
        yield block.block_id
        block = block.next_free_block
