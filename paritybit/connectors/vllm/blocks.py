"""Follows the pool of blocks of an engine: allocations, frees, copies, and leaks."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import Following, Original
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
        for copy in getattr(output, "kv_cache_block_copies", None) or ():
            source, target = ([getattr(copy, name)] for name in ("src_block_id", "dst_block_id"))
            for group in self.pool.names:
                watcher.copied(group, self.pool.slots(source), self.pool.slots(target))

    def frees(self, original: Original, queue: Any, blocks: Any, *args: Any, **kwargs: Any) -> Any:
        """Report the blocks that the engine puts into the queue of free blocks."""
        blocks = list(blocks) if isinstance(blocks, Iterable) else blocks
        result = original(queue, blocks, *args, **kwargs)
        if self.watcher is not None:
            self.report(queue, blocks, self.watcher.freed)
        return result

    def takes(self, original: Original, queue: Any, *args: Any, **kwargs: Any) -> Any:
        """Report the blocks that the engine takes out of the queue of free blocks."""
        result = original(queue, *args, **kwargs)
        if self.watcher is not None:
            self.report(queue, args[0] if result is None else result, self.watcher.allocated)
        return result

    def shares(self, original: Original, pool: Any, blocks: Any, *args: Any, **kwargs: Any) -> Any:
        """Report the blocks that a request gets from the prefix cache."""
        result = original(pool, blocks, *args, **kwargs)
        if self.watcher is not None and isinstance(blocks, list | tuple):
            mine = [block for block in blocks if not getattr(block, "is_null", True)]
            self.report(pool.free_block_queue, mine, self.watcher.shared)
        return result

    def report(self, queue: Any, blocks: Any, method: Any) -> None:
        """Report the first slot of each block to the watcher, if the queue is the pool's."""
        blocks = blocks if isinstance(blocks, list) else [blocks]
        serves = self.scheduler.kv_cache_manager.block_pool.free_block_queue is queue
        if self.pool is not None and blocks and serves:
            slots = torch.tensor([block.block_id for block in blocks]) * self.pool.page
            for group in self.pool.names:
                method(group, slots)

    def idle(self, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Judge whether all blocks are free, when no request is left."""
        result = original(scheduler, *args, **kwargs)
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
