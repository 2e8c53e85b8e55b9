"""The engine's runners and its drafter as the harness takes them, over its own blocks."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from paritybit.reference.allocator import Ownership
from paritybit.subjects.engines.paged.drafting import PagedDraftingEngine
from paritybit.subjects.engines.paged.engine import PagedEngine
from paritybit.subjects.engines.paged.ownership import ownership_of
from paritybit.subjects.engines.shared.engine import offers
from paritybit.subjects.engines.vllm.contract import CONTRACT, OF_DRAFTS
from paritybit.subjects.engines.vllm.drafter import DraftingRunner
from paritybit.subjects.engines.vllm.requests import VllmRequests
from paritybit.subjects.engines.vllm.runner import VllmRunner
from paritybit.subjects.engines.vllm.settings import DECLARED


class VllmEngine(PagedEngine):
    """The engine's runner of batches of one mode; others run eagerly, by the engine's own code."""

    runner: VllmRunner
    requests: VllmRequests
    lacks = offers(DECLARED["missing"])
    contract = CONTRACT

    def state(self) -> Any:
        """Return the engine's own note of how many rows of its block tables are in use."""
        return getattr(self.runner.runner.block_tables, "_num_dirty_rows", None)

    def restore(self, state: Any) -> None:
        """Bring back that note, where the engine keeps one."""
        if state is not None:
            self.runner.runner.block_tables._num_dirty_rows = state

    def ownership(self) -> Ownership:
        """Return who holds which blocks and rows, by the engine's manager and tables."""
        return ownership(self.requests, self.runner)


class DraftingEngine(PagedDraftingEngine, VllmEngine):
    """The engine's drafter."""

    runner: DraftingRunner
    contracts = OF_DRAFTS
    lacks = VllmEngine.lacks | offers(DECLARED["missing_of_drafters"])


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
