"""Lets the engine's pool refuse a block now and then, so that the engine preempts a request.

As in a full pool, others may then take blocks of that request, which are no longer cached.
"""

import importlib
from functools import wraps
from typing import Any

from paritybit.drive.vllm.host import CHANCE

INTERVAL, LATEST = 6, 3
"""After how many steps the pool refuses again, and after how many running requests of that step."""

TAKEN = 1 / 2
"""The share of preempted requests that lose cached blocks, from any of them on."""

PREEMPTED = "RUNNING", "PREEMPTED"
"""The states of a request whose blocks are freed before its end."""


def preempt_often() -> None:
    """Let the pool be full for a request that needs a block. The engine chooses the victim."""
    kind: Any = importlib.import_module("vllm.v1.core.kv_cache_manager").KVCacheManager
    allocate, begin, free = kind.allocate_slots, kind.new_step_starts, kind.free
    steps, left = 0, -1

    @wraps(begin)
    def begun(manager: Any) -> None:
        nonlocal steps, left
        steps += 1
        if steps % INTERVAL == 0:
            left = CHANCE.randint(0, LATEST)
        begin(manager)

    @wraps(allocate)
    def allocated(manager: Any, request: Any, *given: Any, **named: Any) -> Any:
        nonlocal left
        if request.status.name != "RUNNING" or left < 0:
            return allocate(manager, request, *given, **named)
        left = max(0, left - 1)
        if left:
            return allocate(manager, request, *given, **named)
        pool = manager.block_pool
        pool.get_num_free_blocks = lambda: 0
        try:
            blocks = allocate(manager, request, *given, **named)
        finally:
            del pool.get_num_free_blocks
        left = -1 if blocks is None else 0
        return blocks

    @wraps(free)
    def freed(manager: Any, request: Any) -> Any:
        taken = request.status.name in PREEMPTED and CHANCE.random() < TAKEN
        groups = manager.get_blocks(request.request_id).blocks if taken else ()
        result, part = free(manager, request), CHANCE.random()
        lost = (block for blocks in groups for block in blocks[int(part * len(blocks)) :])
        manager.block_pool.evict_blocks({one.block_id for one in lost if one.ref_cnt == 0})
        return result

    kind.new_step_starts, kind.allocate_slots, kind.free = begun, allocated, freed
