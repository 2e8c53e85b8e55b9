"""Two streams of ordered device work, of which one lags: it runs as late as the waits allow.

The host gives work to a stream, records events behind it, and makes a stream or itself wait
for them. What nothing orders runs in the order that hurts: a stream that lags begins no piece
of its work before somebody waits for it, while the other goes on. So a wait that is missing
shows at once, and in the same way each time. Here is the emulation on a CPU; on CUDA the
streams are real ones, see `subjects/cuda_streams.py`.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

Work = Callable[[], None]


@dataclass
class Stalls:
    """How many gates of this process's real streams opened by themselves, after some 4 seconds.

    The host was waiting for something behind them. From then on they no longer held back the work
    that they should have, so that a race may not have shown.
    """

    gates: int = 0


STALLS = Stalls()


class Event(Protocol):
    """A point between the pieces of work of one stream."""

    @property
    def done(self) -> bool:
        """Whether all work before it has run."""
        ...

    def synchronise(self) -> None:
        """Let the host wait until all work before it has run."""
        ...


class Stream(Protocol):
    """Device work in the order it is given."""

    def run(self, work: Work, *, asks: bool = False, reads: bool = False) -> None:
        """Give the stream a piece of work, which reads and writes when it runs, not now.

        `asks` says whether the host waits for the device in it: a real stream cannot lag then.
        `reads` says that it only copies what is there: it need not lag, since that shows nothing.
        """
        ...

    def record(self) -> Event:
        """Return an event behind all work given so far."""
        ...

    def wait(self, event: Event) -> None:
        """Run nothing that is given from now on before `event` is done."""
        ...


class Streams(Protocol):
    """The two streams of an engine that overlaps steps.

    The forwards run on `forward`, the writes that follow from the host's decisions on `schedule`.
    """

    def rehearsal(self) -> AbstractContextManager[bool]:
        """Run all work in the order it is given; say whether a schedule must be played so first.

        It must where a device does for the first time what it cannot do behind work that lags.
        Nothing overtakes then, so that a race ends no rehearsal before it was all played.
        """
        ...

    def open(self) -> None:
        """Hold back nothing that was given so far: what follows may make a device wait for it."""
        ...

    @property
    def forward(self) -> Stream:
        """The stream of the forwards."""
        ...

    @property
    def schedule(self) -> Stream:
        """The stream of the tables' writes."""
        ...

    def lag(self, *, forward: bool) -> None:
        """Let the stream of the forwards lag from now on, or else the other one."""
        ...

    def follow_host(self) -> None:
        """Let the host wait for its own device work, which is on neither stream."""
        ...

    def clear(self) -> None:
        """Forget the work that has not begun, and wait for what has."""
        ...


class LateEvent:
    """An event of an emulated stream."""

    def __init__(self, stream: "LateStream") -> None:
        self.stream = stream
        self.done = False

    def synchronise(self) -> None:
        """Run the stream's work up to here."""
        while not self.done:
            self.stream.advance()


@dataclass(frozen=True)
class Wait:
    """A place in a stream that nothing passes before the event is done."""

    event: Event


class LateStream:
    """An emulated stream: a queue of work. `changed` is called when something could go on."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.queue: deque[Work | LateEvent | Wait] = deque()

    def run(self, work: Work, *, asks: bool = False, reads: bool = False) -> None:
        """Give the stream a piece of work. It lags even if it asks: all of it runs late."""
        self.queue.append(work)
        self.changed()

    def record(self) -> LateEvent:
        """Return an event behind all work given so far."""
        event = LateEvent(self)
        self.queue.append(event)
        self.changed()
        return event

    def wait(self, event: Event) -> None:
        """Run nothing that is given from now on before `event` is done."""
        self.queue.append(Wait(event))
        self.changed()

    def can_advance(self) -> bool:
        """Whether there is something to run that waits for nothing."""
        head = self.queue[0] if self.queue else None
        return head is not None and not (isinstance(head, Wait) and not head.event.done)

    def advance(self) -> None:
        """Run what comes next. What it waits for is run first, and may be all that is run."""
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
    """The two streams, emulated on a CPU: the one that lags runs only what is waited for."""

    def __init__(self) -> None:
        self.forward = LateStream(self._advance)
        self.schedule = LateStream(self._advance)
        self._ahead = self.schedule

    def lag(self, *, forward: bool) -> None:
        """Let the stream of the forwards lag from now on, or else the other one."""
        self._ahead = self.schedule if forward else self.forward
        self._advance()

    def rehearsal(self) -> AbstractContextManager[bool]:
        """Do nothing: emulated work can always run late."""
        return nullcontext(False)

    def open(self) -> None:
        """Do nothing: no device waits for emulated work."""

    def follow_host(self) -> None:
        """Do nothing: on a CPU the host's own work has run."""

    def clear(self) -> None:
        """Forget the work that has not run."""
        self.forward.queue.clear()
        self.schedule.queue.clear()

    def _advance(self) -> None:
        """Run all that the stream that does not lag can run."""
        while self._ahead.can_advance():
            self._ahead.advance()
