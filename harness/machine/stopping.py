"""Signals that stop this process, at once or after the results have been written."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals for Ctrl-C, the end of a job, and a closed terminal."""

PATIENCE = 5.0
"""Seconds after a signal in which further signals are ignored, so the run can save its results.

A process group may get a signal twice, and people press Ctrl-C until something happens.
"""

AGAIN = 0.01
"""Seconds after which a signal is sent again if Python dropped its exception."""


class Stop:
    """The last signal that stopped this process, or None, and its time."""

    received: int | None = None
    at: float

    def hear(self, number: int, _: FrameType | None) -> None:
        """Raise KeyboardInterrupt, so that the finished results are saved.

        A second signal shortly after the first is ignored. Only Ctrl-C counts more than once.
        """
        now = time.monotonic()
        again = self.received is not None
        if again and (number == self.received != signal.SIGINT or now - self.at < PATIENCE):
            return
        self.received, self.at = number, now
        raise KeyboardInterrupt


@contextmanager
def heard_by(hear: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call `hear` for the stop signals in this context, except those that are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def listening(stop: Stop) -> Iterator[None]:
    """Pass the stop signals in this context to `stop`, except those that are ignored.

    Python drops an exception that is raised in a weakref callback or in `__del__`. A signal that
    arrives there is sent again.
    """
    before = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if stop.received is not None and issubclass(dropped.exc_type, KeyboardInterrupt):
            # Once the code that dropped the exception has returned.
            number, stop.received = stop.received, None
            threading.Timer(AGAIN, os.kill, (os.getpid(), number)).start()
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        with heard_by(stop.hear):
            yield
    finally:
        sys.unraisablehook = before


@contextmanager
def heard_at_the_end() -> Iterator[None]:
    """Delay the stop signals until the end of this context.

    Use it for short work that saves the results of a run.
    """
    heard: list[int] = []
    with heard_by(lambda number, _: heard.append(number)):
        yield
    if heard:
        signal.raise_signal(heard[0])
