"""Runs work in a fork of this process, so that its side effects are discarded."""

import gc
import json
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Pipe
from typing import Any

from torch import distributed

from paritybit.watch import journal
from paritybit.watch.boundary import LONGEST


class ForkFailedError(Exception):
    """The work of a fork raised an error, or the fork ended or took too long."""


def in_fork(work: Callable[[], Any], seconds: float) -> Any:
    """Run `work` in a fork of this process, and return its result as JSON data.

    Raises ForkFailedError if it fails or takes longer. The engine must not use threads or a GPU.
    """
    reads, writes = Pipe(duplex=False)
    if (before := journal.of_process()) is not None:
        before.settle()
    gc.freeze()  # A collection in the fork would copy every page that it touches.
    child = os.fork()
    if child == 0:
        try:
            writes.send_bytes(outcome(work).encode())
        finally:
            os._exit(0)
    writes.close()
    with reads:
        try:
            text = reads.recv_bytes() if reads.poll(seconds) else None
        except EOFError:
            text = b""
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if text is None:
        raise ForkFailedError(f"it did not end within {seconds:.0f} s")
    if not text:
        code = os.waitstatus_to_exitcode(status)
        raise ForkFailedError(f"its process ended with exit code {code}")
    result, error = json.loads(text)
    if error is not None:
        raise ForkFailedError(error)
    return result


def outcome(work: Callable[[], Any]) -> str:
    """Return the result of `work` and null, or null and its error, as JSON. Runs in a fork."""
    distributed.barrier = lambda *_, **__: None  # A fork has no threads that wait for the group.
    lines = journal.of_process()  # One of its own.
    try:
        return json.dumps((work(), None))
    except BaseException as error:
        traceback.print_exc()
        text = " ".join(str(error).split())[-LONGEST:]
        return json.dumps((None, f"{type(error).__name__}: {text}"))
    finally:
        if lines is not None:
            lines.end()
