"""What the sanitizer uses: its time, and GPU memory apart from the pool of the engine.

With memory from that pool, the engine would find other garbage behind its tensors, and less memory.
"""

import threading
import time
from typing import Any, cast

import torch


class _State(threading.local):
    """Since when this thread runs the sanitizer, and the GPU whose pool it uses, if any."""

    since: float | None = None
    entered: int | None = None


_STATE = _State()

_POOLS: dict[int, Any] = {}
"""The pool of each GPU with a watcher, by its index."""

_BEGIN, _END, _RELEASE = (
    cast(Any, getattr(torch._C, f"_cuda_{name}", None))
    for name in ("beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool")
)
"""What `torch.cuda.use_mem_pool` calls, which takes several times as long."""

_SPENT = [0.0]
"""The seconds that this process spent in the sanitizer."""


def seconds() -> float:
    """Return how many seconds this process spent in the sanitizer, without those under way."""
    return _SPENT[0]


def prepare(device: torch.device) -> None:
    """Create the pool for a device, if it is a GPU."""
    if device.type == "cuda" and _BEGIN and _END and _RELEASE:
        with torch.cuda.device(device):
            if (index := torch.cuda.current_device()) not in _POOLS:
                _POOLS[index] = torch.cuda.MemPool()


def _enter() -> None:
    """Allocate from the pool of the current device from now on, unless a graph is captured."""
    _STATE.since = time.perf_counter()
    if not _POOLS or torch.cuda.is_current_stream_capturing():
        return
    index = torch.cuda.current_device()
    if index in _POOLS:
        _BEGIN(index, _POOLS[index].id)
        _STATE.entered = index


def _leave() -> bool:
    """Allocate as the engine does. Returns whether the sanitizer was running."""
    index, _STATE.entered = _STATE.entered, None
    since, _STATE.since = _STATE.since, None
    if index is not None:
        _END(index, _POOLS[index].id)
        _RELEASE(index, _POOLS[index].id)
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
