"""Two streams of device work, one of which lags: it runs as late as the waits allow.

The host queues work on a stream, records events after it, and lets a stream or itself wait for
them. A lagging stream starts its work only when something waits for it, while the other stream
continues. Unordered work therefore runs in the most harmful order, and a missing wait always shows
in the same way.

This module emulates streams on a CPU. `subjects/cuda_streams.py` uses real streams.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

Work = Callable[[], None]


@dataclass
class Stalls:
    """Counts the gates of real streams in this process that opened by themselves.

    A gate opens by itself after about 4 seconds. The host was waiting for work behind such a gate.
    It no longer held back its work, so a race may have stayed hidden.
    """

    gates: int = 0


STALLS = Stalls()


class Event(Protocol):
    """A point between pieces of work on one stream."""

    @property
    def done(self) -> bool:
        """Whether all work before the event has run."""
        ...

    def synchronise(self) -> None:
        """Block the host until all work before the event has run."""
        ...


class Stream(Protocol):
    """Device work that runs in the order in which it is queued."""

    def run(self, work: Work, *, asks: bool = False, reads: bool = False) -> None:
        """Queue a piece of work. It reads and writes when it runs, not now.

        `asks` says that the host waits for the device within the work, so a real stream cannot lag
        then. `reads` says that the work only copies existing data, so it need not lag.
        """
        ...

    def record(self) -> Event:
        """Return an event after all work queued so far."""
        ...

    def wait(self, event: Event) -> None:
        """Run work that is queued from now on only when `event` is done."""
        ...


class Streams(Protocol):
    """The two streams of an engine that overlaps steps.

    Forwards run on `forward`. Writes that follow from the host's decisions run on `schedule`.
    """

    def rehearsal(self) -> AbstractContextManager[bool]:
        """Run all work in the order of the queue. Yields whether schedules need a rehearsal first.

        They need one if a device does something for the first time that it cannot do behind lagging
        work. In a rehearsal nothing is reordered, so no race ends it early.
        """
        ...

    def open(self) -> None:
        """Release all work queued so far, because the device may have to wait for it next."""
        ...

    @property
    def forward(self) -> Stream:
        """The stream for forwards."""
        ...

    @property
    def schedule(self) -> Stream:
        """The stream for writes to tables."""
        ...

    def lag(self, *, forward: bool) -> None:
        """Let the forward stream lag from now on if `forward`, else the other one."""
        ...

    def follow_host(self) -> None:
        """Block the host until its own device work, outside both streams, is done."""
        ...

    def clear(self) -> None:
        """Discard work that has not started, and wait for the rest."""
        ...


class LateEvent:
    """An event on an emulated stream."""

    def __init__(self, stream: "LateStream") -> None:
        self.stream = stream
        self.done = False

    def synchronise(self) -> None:
        """Run the stream's work up to here."""
        while not self.done:
            self.stream.advance()


@dataclass(frozen=True)
class Wait:
    """A place in a stream where work waits for an event."""

    event: Event


class LateStream:
    """An emulated stream: a queue of work. `changed` is called when work may continue."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.queue: deque[Work | LateEvent | Wait] = deque()

    def run(self, work: Work, *, asks: bool = False, reads: bool = False) -> None:
        """Queue a piece of work. It lags whatever `asks` and `reads` are."""
        self.queue.append(work)
        self.changed()

    def record(self) -> LateEvent:
        """Return an event after all work queued so far."""
        event = LateEvent(self)
        self.queue.append(event)
        self.changed()
        return event

    def wait(self, event: Event) -> None:
        """Run work that is queued from now on only when `event` is done."""
        self.queue.append(Wait(event))
        self.changed()

    def can_advance(self) -> bool:
        """Whether the next item exists and waits for nothing."""
        head = self.queue[0] if self.queue else None
        return head is not None and not (isinstance(head, Wait) and not head.event.done)

    def advance(self) -> None:
        """Run the next item. If it waits for an event, only run the work before that event."""
        head = self.queue[0]
        if isinstance(head, Wait) and not head.event.done:
            head.event.synchronise()
            return
        self.queue.popleft()
        if isinstance(head, LateEvent):
            head.done = True
        elif not isinstance(head, Wait):
            head()
        self.changed()


class LateStreams:
    """Both streams, emulated on a CPU. The lagging one runs only work that is waited for."""

    def __init__(self) -> None:
        self.forward = LateStream(self._advance)
        self.schedule = LateStream(self._advance)
        self._ahead = self.schedule
        self._advancing = False

    def lag(self, *, forward: bool) -> None:
        """Let the forward stream lag from now on if `forward`, else the other one."""
        self._ahead = self.schedule if forward else self.forward
        self._advance()

    def rehearsal(self) -> AbstractContextManager[bool]:
        """Do nothing: emulated work can always lag."""
        return nullcontext(False)

    def open(self) -> None:
        """Do nothing: no device waits for emulated work."""

    def follow_host(self) -> None:
        """Do nothing: on a CPU the host's own work has already run."""

    def clear(self) -> None:
        """Discard work that has not run."""
        self.forward.queue.clear()
        self.schedule.queue.clear()

    def _advance(self) -> None:
        """Run all possible work on the stream that does not lag.

        Work that makes more of it possible leaves that to the loop that runs the work.
        """
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._ahead.can_advance():
                self._ahead.advance()
        finally:
            self._advancing = False
