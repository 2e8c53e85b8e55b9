"""What asks this process to stop: a signal, heard at once or when what is kept has been written."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, what ends a job, and a terminal that is gone."""

PATIENCE = 5.0
"""Seconds after a signal within which another is not heard: the run stops, and keeps what it has.

A group may be sent one twice at once, and people press Ctrl-C until something happens.
"""


class Stop:
    """The signal that asked this process to stop, if one did, and when."""

    received: int | None = None
    at: float

    def hear(self, number: int, _: FrameType | None) -> None:
        """Stop what goes on as Ctrl-C does, so that what has ended until then is kept.

        A second signal soon after is not heard, and nothing but Ctrl-C is heard twice.
        """
        now = time.monotonic()
        again = self.received is not None
        if again and (number == self.received != signal.SIGINT or now - self.at < PATIENCE):
            return
        self.received, self.at = number, now
        raise KeyboardInterrupt

    def raise_if_swallowed(self) -> None:
        """Raise KeyboardInterrupt if a signal was heard, and what it raised was caught since."""
        if self.received is not None:
            raise KeyboardInterrupt


@contextmanager
def heard_by(hear: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let `hear` be called within for what asks this process to stop, unless that is ignored."""
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


def listening(stop: Stop) -> AbstractContextManager[None]:
    """Let `stop` hear within what asks this process to stop, unless that is ignored."""
    return heard_by(stop.hear)


@contextmanager
def heard_at_the_end() -> Iterator[None]:
    """Let what asks this process to stop be heard once what is in here is done.

    It is for what keeps a run: a moment's work, and nothing is left of the run without it.
    """
    heard: list[int] = []
    with heard_by(lambda number, _: heard.append(number)):
        yield
    if heard:
        signal.raise_signal(heard[0])
