"""What the sanitizer uses: its time, and GPU memory apart from the pool of the engine.

With memory from that pool, the engine would find other garbage behind its tensors, and less memory.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch


class _State(threading.local):
    """Since when this thread runs the sanitizer, and the context in which it allocates, if any."""

    since: float | None = None
    entered: AbstractContextManager[Any] | None = None


_STATE = _State()

_POOLS: dict[torch.device, Any] = {}
"""The pool of each GPU with a watcher."""

_SPENT = [0.0]
"""The seconds that this process spent in the sanitizer."""


def seconds() -> float:
    """Return how many seconds this process spent in the sanitizer, without those under way."""
    return _SPENT[0]


def prepare(device: torch.device) -> None:
    """Create the pool for a device, if it is a GPU."""
    if device.type == "cuda" and hasattr(torch.cuda, "use_mem_pool") and device not in _POOLS:
        with torch.cuda.device(device):
            _POOLS[device] = torch.cuda.MemPool()


def _enter() -> None:
    """Allocate from the pool of the current device from now on, unless a graph is captured."""
    _STATE.since = time.perf_counter()
    if not _POOLS or torch.cuda.is_current_stream_capturing():
        return
    pool = _POOLS.get(torch.device("cuda", torch.cuda.current_device()))
    if pool is not None:
        entering = torch.cuda.use_mem_pool(pool)
        entering.__enter__()
        _STATE.entered = entering


def _leave() -> bool:
    """Allocate as the engine does. Returns whether the sanitizer was running."""
    entered, _STATE.entered = _STATE.entered, None
    since, _STATE.since = _STATE.since, None
    if entered is not None:
        entered.__exit__(None, None, None)
    if since is not None:
        _SPENT[0] += time.perf_counter() - since
    return since is not None


@contextmanager
def ours() -> Iterator[None]:
    """Allocate from the own pool in this context, whose time is the sanitizer's."""
    if _STATE.since is not None:
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


@contextmanager
def theirs() -> Iterator[None]:
    """Allocate as the engine does in this context, which runs its code in its time."""
    left = _leave()
    try:
        yield
    finally:
        if left:
            _enter()
