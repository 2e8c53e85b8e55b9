"""Two streams of device work, emulated on a CPU. One of them lags: it runs as late as possible.

The host queues work on a stream, records events after it, and lets a stream or itself wait for
them. A lagging stream starts its work only when something waits for it, while the other stream
continues. Unordered work therefore runs in the most harmful order, and a missing wait always shows
in the same way.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], None]


class Event:
    """A point between pieces of work on one stream. `done` says whether all work before has run."""

    def __init__(self, stream: "Stream") -> None:
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


class Stream:
    """A queue of work, which runs in its order. `changed` is called when work may continue."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.queue: deque[Work | Event | Wait] = deque()

    def run(self, work: Work) -> None:
        """Queue a piece of work. It reads and writes when it runs, not now."""
        self.queue.append(work)
        self.changed()

    def record(self) -> Event:
        """Return an event after all work queued so far."""
        event = Event(self)
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
        if isinstance(head, Event):
            head.done = True
        elif not isinstance(head, Wait):
            head()
        self.changed()


class StreamPair:
    """The two streams of an engine that overlaps steps.

    Forwards run on `forward`. Writes that follow from the host's decisions run on `schedule`.
    """

    def __init__(self) -> None:
        self.forward = Stream(self._advance)
        self.schedule = Stream(self._advance)
        self._ahead = self.schedule
        self._advancing = False

    def lag(self, *, forward: bool) -> None:
        """Let the forward stream lag from now on if `forward`, else the other one."""
        self._ahead = self.schedule if forward else self.forward
        self._advance()

    def clear(self) -> None:
        """Discard work that has not run."""
        self.forward.queue.clear()
        self.schedule.queue.clear()

    def _advance(self) -> None:
        """Run all possible work on the stream that does not lag."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._ahead.can_advance():
                self._ahead.advance()
        finally:
            self._advancing = False
