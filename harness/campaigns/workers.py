"""Worker processes that leave Ctrl-C to the process that started them."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any


def pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of fresh processes. They start with their first tasks: see `undisturbed`."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold SIGINT back: what starts in here is deaf to it for good, even while it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def spreading(workers: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Give a map over `workers` processes, or over this one alone."""
    if workers == 1:
        yield map
        return
    executor = pool(workers)

    def spread(function: Callable[[Any], Any], work: Sequence[Any]) -> Iterator[Any]:
        with undisturbed():
            return executor.map(function, work)

    try:
        yield spread
    except BaseException:
        end(executor)
        raise
    executor.shutdown()


def end(executor: ProcessPoolExecutor) -> None:
    """End a pool's processes at once, whatever they do."""
    for process in list((executor._processes or {}).values()):
        process.terminate()
    executor.shutdown(wait=False, cancel_futures=True)
