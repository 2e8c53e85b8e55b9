"""Runs work in a fork of this process, so that its side effects are discarded."""

import gc
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from torch import distributed

from paritybit.watch import journal


def in_fork(work: Callable[[], Any], seconds: float) -> Any:
    """Run `work` in a fork of this process, and return its result as JSON data.

    Returns None if it fails or takes longer than `seconds`. The engine must not use threads or a
    GPU.
    """
    reads, writes = os.pipe()
    if (before := journal.of_process()) is not None:
        before.settle()
    gc.freeze()  # A collection in the fork would copy every page that it touches.
    child = os.fork()
    if child == 0:
        try:
            os.close(reads)
            distributed.barrier = passed
            lines = journal.of_process()  # One of its own.
            os.write(writes, json.dumps(work()).encode())
            if lines is not None:
                lines.end()
        finally:
            os._exit(0)
    os.close(writes)
    try:
        return json.loads(received(reads, time.monotonic() + seconds) or "null")
    finally:
        os.close(reads)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def passed(*_: object, **__: object) -> None:
    """Pass a barrier immediately, because a fork has no threads that could wait for the group."""


def received(reads: int, deadline: float) -> bytes:
    """Return the content of a pipe until it is closed, or nothing if that is not in time."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([reads], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b""
        part = os.read(reads, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
