"""Follows the pool of blocks of an engine: allocations, frees, copies, and leaks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import Following
from paritybit.connectors.hooking import Call
from paritybit.connectors.vllm.pools import Pool
from paritybit.watch.watcher import Watcher


class Blocks(Following):
    """The part of an engine that follows its pool of blocks."""

    inner = "/block_pool.py", "/kv_cache_utils.py"
    pool: Pool | None = None
    scheduler: Any = None

    def copies(self, watcher: Watcher, output: Any) -> None:
        """Report the blocks that the runner copies before it computes."""
        assert self.pool is not None
        for copy in output.kv_cache_block_copies or ():
            source, target = self.pool.slots([copy.src_block_id]), [copy.dst_block_id]
            for group in self.pool.names:
                watcher.copied(group, source, self.pool.slots(target))

    def frees(self, original: Call, queue: Any, blocks: Any) -> Any:
        """Report the blocks that the engine puts into the queue of free blocks."""
        result = original()
        self.report(queue, blocks, "freed")
        return result

    def takes(self, original: Call, queue: Any, given: Any = None) -> Any:
        """Report the blocks that the engine takes out of the queue of free blocks."""
        result = original()
        self.report(queue, given if result is None else result, "allocated")
        return result

    def shares(self, original: Call, pool: Any, blocks: Sequence[Any]) -> Any:
        """Report the blocks that a request gets from the prefix cache."""
        result = original()
        mine = [block for block in blocks if not block.is_null]
        self.report(pool.free_block_queue, mine, "shared")
        return result

    def emptied(self, original: Call, _: Any) -> Any:
        """Report that the prefix cache was emptied, unless the engine refused."""
        done = original()
        if done and self.watcher is not None:
            self.watcher.emptied()
        return done

    def report(self, queue: Any, blocks: Any, method: str) -> None:
        """Report the first slot of each block to the watcher, if the queue is the pool's."""
        blocks = blocks if isinstance(blocks, list) else [blocks]
        if self.watcher is None or self.pool is None or not blocks:
            return
        if self.scheduler.kv_cache_manager.block_pool.free_block_queue is queue:
            slots = torch.tensor([block.block_id for block in blocks]) * self.pool.page
            for group in self.pool.names:
                getattr(self.watcher, method)(group, slots)

    def idle(self, original: Call, scheduler: Any) -> Any:
        """Judge whether all blocks are free, when no request is left."""
        result = original()
        if self.watcher is None or self.pool is None or scheduler.requests:
            return result
        if self.idle_since(self.forwards):
            blocks = scheduler.kv_cache_manager.block_pool
            free = [block.block_id for block in blocks.free_block_queue.get_all_free_blocks()]
            locked = sum(block.ref_cnt != 0 for block in blocks.blocks if not block.is_null)
            slots: tuple[Tensor, Tensor] = self.pool.slots(free), self.pool.slots([])
            self.watcher.idle(
                dict.fromkeys(self.pool.names, slots),
                dict.fromkeys(self.pool.names, locked * self.pool.page),
            )
        return result
