"""Lets the engine's pool refuse a block now and then, so that the engine preempts a request."""

import importlib
from functools import wraps
from typing import Any

from paritybit.drive.vllm.host import CHANCE

INTERVAL, LATEST = 6, 3
"""After how many steps the pool refuses again, and after how many running requests of that step."""


def preempt_often() -> None:
    """Let the pool act as if it were full. The engine chooses which request it preempts."""
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
        if request.status.name == "RUNNING" and left >= 0:
            left -= 1
            if left < 0:
                return None
        return allocate(manager, request, *given, **named)

    kind.new_step_starts, kind.allocate_slots = begun, allocated
