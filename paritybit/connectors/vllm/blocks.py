"""Follows the pool of blocks of an engine: allocations, frees, copies, and leaks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import HOST, Following, pages
from paritybit.connectors.hooking import maybe
from paritybit.connectors.vllm.pools import VllmPool
from paritybit.watch.facts import HostSlots
from paritybit.watch.watcher import Watcher

FOLLOWED = {
    "OffloadingConnector": {"cpu_bytes_to_use", "offload_prompt_only"},
    "SimpleCPUOffloadConnector": {"cpu_bytes_to_use", "lazy_offload"},
}
"""The KV connectors that are followed, and the only settings that each may have."""


class Blocks(Following):
    """The part of an engine that follows its pool of blocks."""

    inner = "/block_pool.py", "/kv_cache_utils.py"
    pool: VllmPool | None = None
    scheduler: Any = None

    def copies(self, watcher: Watcher, output: Any) -> None:
        """Report the blocks that the runner copies before it computes."""
        assert self.pool is not None
        for copy in output.kv_cache_block_copies or ():
            source, target = self.pool.slots([copy.src_block_id]), [copy.dst_block_id]
            for group in self.pool.names:
                watcher.copied(group, source, self.pool.slots(target))

    def frees(self, result: Any, queue: Any, blocks: Any) -> None:
        """Report the blocks that the engine puts into the queue of free blocks."""
        self.report(queue, blocks, "freed")

    def takes(self, result: Any, queue: Any, given: Any = None) -> None:
        """Report the blocks that the engine takes out of the queue of free blocks."""
        self.report(queue, given if result is None else result, "allocated")

    def shares(self, result: Any, pool: Any, blocks: Sequence[Any]) -> None:
        """Report the blocks that a request gets from the prefix cache."""
        mine = [block for block in blocks if not block.is_null]
        self.report(pool.free_block_queue, mine, "shared")

    def transfer(self, result: Any, handler: Any, _: int, source: Any, target: Any) -> None:
        """Report the blocks of each engine group that were copied to the host or back."""
        pool, stores = self.pool, handler.gpu_to_cpu
        if pool is None:
            return
        device, host = (source, target) if stores else (target, source)
        size = len((handler.dst_tensors if stores else handler.src_tensors)[0])
        begin = 0
        for number, count in enumerate(device.group_sizes):
            mine = slice(begin, begin + count)
            begin += count
            names = pool.names_of(number) if count else ()
            self.carried(stores, names, device.block_ids[mine], host.block_ids[mine], size)

    def launches(self, result: Any, backend: Any, source: Any, target: Any, is_store: bool) -> None:
        """Report the blocks that the simple connector copied to the host or back."""
        if self.pool is not None:
            device, host = (source, target) if is_store else (target, source)
            size = connector_of(self.scheduler).scheduler_manager.num_cpu_blocks
            self.carried(is_store, self.pool.names, device, host, size)

    def carried(
        self, stores: bool, names: Sequence[str], device: Any, host: Any, size: int
    ) -> None:
        """Report blocks of KV groups that were copied to one of the host's blocks each, or back."""
        watcher, pool = self.watcher, self.pool
        if watcher is None or pool is None:
            return
        slots, places = pool.slots(device), pages(host, pool.page)
        for group in names:
            if stores:
                watcher.store(HOST, group, slots, places, size * pool.page)
            else:
                watcher.load(HOST, group, slots, places)

    def emptied(
        self,
        result: Any,
        scheduler: Any,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
    ) -> None:
        """Report that the prefix cache was emptied, unless it was refused or the host keeps KV."""
        keeps = connector_of(scheduler) is not None and not reset_connector
        if result and self.watcher is not None and not keeps:
            self.watcher.emptied()

    def report(self, queue: Any, blocks: Any, method: str) -> None:
        """Report the first slot of each block to the watcher, if the queue is the pool's."""
        blocks = blocks if isinstance(blocks, list) else [blocks]
        if self.watcher is None or self.pool is None or not blocks:
            return
        if self.scheduler.kv_cache_manager.block_pool.free_block_queue is queue:
            slots = torch.tensor([block.block_id for block in blocks]) * self.pool.page
            for group in self.pool.names:
                getattr(self.watcher, method)(group, slots)

    def idle(self, result: Any, scheduler: Any) -> None:
        """Judge whether all blocks are free, when no request is left."""
        connector = connector_of(scheduler)
        waits = scheduler.requests or maybe(scheduler, "deferred_frees")
        waits = waits or copies(maybe(connector, "scheduler_manager"))
        if self.watcher is None or self.pool is None or waits:
            return
        if self.idle_since(self.forwards):
            blocks = scheduler.kv_cache_manager.block_pool
            free = [block.block_id for block in blocks.free_block_queue.get_all_free_blocks()]
            locked = sum(block.ref_cnt != 0 for block in blocks.blocks if not block.is_null)
            slots: tuple[Tensor, Tensor] = self.pool.slots(free), self.pool.slots([])
            self.watcher.idle(
                dict.fromkeys(self.pool.names, slots),
                dict.fromkeys(self.pool.names, locked * self.pool.page),
                hosts=on_host(connector),
            )


def connector_of(scheduler: Any) -> Any:
    """Return the KV connector of a scheduler, or None."""
    return maybe(scheduler, "connector")


def unfollowed(transfer: Any) -> list[str]:
    """Return what is not followed of a configuration of KV connectors."""
    if transfer is None:
        return []
    settings = FOLLOWED.get(transfer.kv_connector)
    known = settings is not None and {*transfer.kv_connector_extra_config} <= settings
    return [] if known else ["a KV connector"]


def copies(manager: Any) -> bool:
    """Return whether the simple connector has copies under way, which hold their blocks."""
    return manager is not None and bool(
        manager.has_pending_stores() or manager._reqs_to_load or manager._abandoned_reqs_to_load
    )


def on_host(connector: Any) -> dict[str, HostSlots]:
    """Return the blocks of the pool on the host, unless the engine copies some of them."""
    name = "blocks on the host"
    if hasattr(connector, "scheduler_manager"):  # Its block 0 is none.
        pool = connector.scheduler_manager.cpu_block_pool
        free = torch.tensor(
            [one.block_id - 1 for one in pool.free_block_queue.get_all_free_blocks()]
        )
        locked = sum(one.ref_cnt != 0 for one in pool.blocks if not one.is_null)
        return {name: HostSlots(len(pool.blocks) - 1, free, free[:0], locked)}
    if connector is None or connector.connector_scheduler._jobs:
        return {}
    manager = connector.connector_scheduler.manager
    used, size = manager._num_allocated_chunks, manager._num_chunks
    chunks = list(manager._policy.chunks.values())
    free = torch.tensor([*manager._free_list, *range(used, size)], dtype=torch.int64)
    held = torch.tensor([one.chunk_id for one in chunks], dtype=torch.int64)
    return {name: HostSlots(size, free, held, sum(one.ref_cnt != 0 for one in chunks))}
