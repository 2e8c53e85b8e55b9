"""What the sanitizer uses: its time, and GPU memory apart from the pool of the engine.

With memory from that pool, the engine would find other garbage behind its tensors, and less memory.
"""

import threading
import time
from contextlib import AbstractContextManager
from typing import Any

import torch


class _State(threading.local):
    """Since when this thread runs the sanitizer, and the context in which it allocates, if any."""

    since: float | None = None
    entered: AbstractContextManager[Any] | None = None


_STATE = _State()

_POOLS: dict[int, Any] = {}
"""The pool of each GPU with a watcher, by its index."""

_SPENT = [0.0]
"""The seconds that this process spent in the sanitizer."""


def seconds() -> float:
    """Return how many seconds this process spent in the sanitizer, without those under way."""
    return _SPENT[0]


def prepare(device: torch.device) -> None:
    """Create the pool for a device, if it is a GPU."""
    if device.type == "cuda" and hasattr(torch.cuda, "use_mem_pool"):
        with torch.cuda.device(device):
            if (index := torch.cuda.current_device()) not in _POOLS:
                _POOLS[index] = torch.cuda.MemPool()


def _enter() -> None:
    """Allocate from the pool of the current device from now on, unless a graph is captured."""
    _STATE.since = time.perf_counter()
    if not _POOLS or torch.cuda.is_current_stream_capturing():
        return
    pool = _POOLS.get(torch.cuda.current_device())
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


class Ours:
    """A context that allocates from the own pool, and whose time is the sanitizer's.

    It takes less time than a generator.
    """

    def __enter__(self) -> None:
        self.outer = _STATE.since is None
        if self.outer:
            _enter()

    def __exit__(self, *_: object) -> None:
        if self.outer:
            _leave()


class Theirs:
    """A context that allocates as the engine does, and runs its code in its time."""

    def __enter__(self) -> None:
        self.left = _leave()

    def __exit__(self, *_: object) -> None:
        if self.left:
            _enter()
