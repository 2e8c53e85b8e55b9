"""Lets the engine's pool refuse a block now and then, so that the engine preempts a request."""

import importlib
from functools import wraps
from typing import Any

from paritybit.drive.vllm.host import CHANCE

INTERVAL, LATEST = 6, 3
"""After how many steps the pool refuses again, and after how many running requests of that step."""


def preempt_often() -> None:
    """Let the pool be full for a request that needs a block. The engine chooses the victim."""
    kind: Any = importlib.import_module("vllm.v1.core.kv_cache_manager").KVCacheManager
    allocate, begin = kind.allocate_slots, kind.new_step_starts
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

    kind.new_step_starts, kind.allocate_slots = begun, allocated
