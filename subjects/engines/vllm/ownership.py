"""Who holds which blocks and rows, by the engine's own manager and its tables of requests."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from reference.allocator import Ownership
from subjects.engines.paged.ownership import ownership_of
from subjects.engines.vllm.requests import VllmRequests
from subjects.engines.vllm.runner import VllmRunner


def ownership(requests: VllmRequests, runner: VllmRunner) -> Ownership:
    """Return who holds what.

    A row of a request that has left is free: the engine hears of it with the next batch.
    """
    states, left = runner.runner.req_states, requests.finished | requests.preempted
    rows, tables = states.req_id_to_index, runner.runner.block_tables.block_tables
    free = islice(_free(requests.manager.block_pool), 2 * requests.blocks)
    free_rows = *states.free_indices, *(rows[name] for name in rows if name in left)
    on_gpu = [one.gpu for one in tables]
    return ownership_of(requests, tuple(free), rows, tuple(runner.rows), free_rows, on_gpu)


def _free(pool: Any) -> Iterator[int]:
    """Yield the blocks of the list of free ones, without an end where a block is in it twice."""
    block = pool.free_block_queue.fake_free_list_head.next_free_block
    while block.next_free_block is not None:
        yield block.block_id
        block = block.next_free_block
