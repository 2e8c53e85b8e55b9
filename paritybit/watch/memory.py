"""The sanitizer's own GPU memory, apart from the pool that the engine allocates from.

Otherwise, the engine would find other garbage behind its tensors than without the sanitizer, and
less memory. On a CPU, nothing here has an effect.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch


class _State(threading.local):
    """What this thread has entered: the context in which it allocates from the own pool, if any."""

    entered: AbstractContextManager[Any] | None = None


_STATE = _State()

_POOLS: dict[torch.device, Any] = {}
"""The pool of each GPU with a watcher."""


def prepare(device: torch.device) -> None:
    """Create the pool for a device, if it is a GPU."""
    if device.type == "cuda" and hasattr(torch.cuda, "use_mem_pool") and device not in _POOLS:
        with torch.cuda.device(device):
            _POOLS[device] = torch.cuda.MemPool()


def _enter() -> None:
    """Allocate from the pool of the current device from now on, unless a graph is captured."""
    if not _POOLS or torch.cuda.is_current_stream_capturing():
        return
    pool = _POOLS.get(torch.device("cuda", torch.cuda.current_device()))
    if pool is not None:
        entering = torch.cuda.use_mem_pool(pool)
        entering.__enter__()
        _STATE.entered = entering


def _leave() -> bool:
    """Allocate as the engine does. Returns whether the own pool was in use."""
    entered, _STATE.entered = _STATE.entered, None
    if entered is not None:
        entered.__exit__(None, None, None)
    return entered is not None


@contextmanager
def ours() -> Iterator[None]:
    """Allocate from the own pool in this context."""
    if _STATE.entered is not None:
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


@contextmanager
def theirs() -> Iterator[None]:
    """Allocate as the engine does in this context, which runs its code."""
    left = _leave()
    try:
        yield
    finally:
        if left:
            _enter()
