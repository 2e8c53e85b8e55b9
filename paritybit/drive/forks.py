"""Work in a fork of this process, so that what it changes is gone afterwards."""

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
    """Return what `work` returns in a fork of this process, as JSON data.

    None if it takes longer, or fails. What it changes stays in the fork. It needs an engine without
    threads and without a GPU.
    """
    reads, writes = os.pipe()
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
    """Pass a barrier at once: the threads that would wait for the group are not in a fork."""


def received(reads: int, deadline: float) -> bytes:
    """Return what a pipe gives until it is closed, nothing if it is not closed in time."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([reads], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b""
        part = os.read(reads, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
