"""Follows the pool of blocks of an engine: allocations, frees, copies, and leaks."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import calling
from paritybit.connectors.vllm.pools import Pool
from paritybit.watch.journal import Journal
from paritybit.watch.watcher import Watcher

Original = Callable[..., Any]


class Blocks:
    """The part of an engine that follows its pool of blocks."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.watcher: Watcher | None = None
        self.pool: Pool | None = None
        self.scheduler: Any = None
        self.forwards = self.idle_at = 0

    def copies(self, watcher: Watcher, output: Any) -> None:
        """Report the blocks that the runner copies before it computes."""
        assert self.pool is not None
        for copy in getattr(output, "kv_cache_block_copies", None) or ():
            source, target = ([getattr(copy, name)] for name in ("src_block_id", "dst_block_id"))
            for group in self.groups:
                watcher.copied(group, self.pool.slots(source), self.pool.slots(target))

    def frees(self, original: Original, queue: Any, blocks: Any, *args: Any, **kwargs: Any) -> Any:
        """Report the blocks that the engine puts into the queue of free blocks."""
        blocks = list(blocks) if isinstance(blocks, Iterable) else blocks
        mine = blocks if isinstance(blocks, list) else [blocks]
        result = original(queue, blocks, *args, **kwargs)
        if self.watcher is not None and mine and self.serves(queue):
            slots, line = self.first_slots(mine), called_at()
            for group in self.groups:
                self.watcher.freed(group, slots, line)
        return result

    def takes(self, original: Original, queue: Any, *args: Any, **kwargs: Any) -> Any:
        """Report the blocks that the engine takes out of the queue of free blocks."""
        result = original(queue, *args, **kwargs)
        taken = args[0] if result is None else result
        mine = taken if isinstance(taken, list) else [taken]
        if self.watcher is not None and mine and self.serves(queue):
            slots, line = self.first_slots(mine), called_at()
            for group in self.groups:
                self.watcher.allocated(group, slots, line)
        return result

    def serves(self, queue: Any) -> bool:
        """Return whether a queue belongs to the watched pool."""
        return self.block_pool.free_block_queue is queue

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the KV groups that share the pool of blocks."""
        return () if self.pool is None else self.pool.names

    @property
    def block_pool(self) -> Any:
        """The engine's pool of blocks."""
        return self.scheduler.kv_cache_manager.block_pool

    def first_slots(self, blocks: list[Any]) -> Tensor:
        """Return the first slot of each block."""
        assert self.pool is not None
        return torch.tensor([block.block_id for block in blocks]) * self.pool.page

    def idle(self, original: Original, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Judge whether all blocks are free, when no request is left."""
        result = original(scheduler, *args, **kwargs)
        if self.watcher is None or self.pool is None or scheduler.requests:
            return result
        if self.idle_at != self.forwards:
            self.idle_at = self.forwards
            blocks = scheduler.kv_cache_manager.block_pool
            free = [block.block_id for block in blocks.free_block_queue.get_all_free_blocks()]
            locked = sum(block.ref_cnt != 0 for block in blocks.blocks if not block.is_null)
            none = torch.empty(0, dtype=torch.int64)
            slots = self.pool.slots(free), none
            self.watcher.idle(
                dict.fromkeys(self.groups, slots),
                dict.fromkeys(self.groups, locked * self.pool.page),
            )
        return result


OF_BLOCKS = ("block_pool.py", "kv_cache_utils.py")
"""Files of the engine that free blocks on behalf of others."""


def called_at() -> tuple[str, ...]:
    """Return the innermost calling lines of the engine outside of its pool of blocks."""

    def place(path: str) -> str | None:
        _, engine, file = path.rpartition("/vllm/v1/")
        return f"vllm/v1/{file}" if engine else None

    return calling(place, lambda path: path.endswith(OF_BLOCKS))
