"""Copies of KV that take time on a CPU.

A stream makes the copies that it got some polls later, or when another stream or the host waits for
them. All other work is done at once, in any stream. The same seed gives the same order.

Each stream also says which marks in the work of others come before what it gets next, because it or
the host has waited for them.
"""

import functools
import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import torch

from paritybit.drive.stand_ins.turns import Turns
from paritybit.engines.graphs import CpuEvent, CpuStream

INDICES = ("src_indices", "dst_indices")
"""The arguments of a copy that it reads when it is called."""

STEPS = (0, 0, 1, 2, 8)
"""How many copies of a stream, or turns of a thread, a poll may make."""

PAUSED, BEGUN = 1 / 16, 1 / 2
"""The part of the pages before which a thread that fetches them ends its turn, and of the writes to
files before which it does."""

TICK = 0.0625
"""How many seconds a poll takes for the engine's own time limits."""


class LateStream(CpuStream):
    """A stream whose copies are late."""

    all: ClassVar[list["LateStream"]] = []
    """The streams that ever got a copy, in that order."""
    held = threading.local()
    made = 0
    """Counts copies that were made."""
    marks: ClassVar[dict["LateStream", int]] = {}
    """The number of marks in each stream."""
    host: ClassVar["Known"] = {}
    """The marks for which the host has waited."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.waiting = deque[Callable[[], object]]()
        self.done = 0
        self.known: Known = {}
        """The marks for which this stream has waited, and its own."""

    @classmethod
    def current(cls, *arguments: Any, **named: Any) -> "LateStream":
        """Return the current stream of this thread."""
        stream: LateStream = getattr(cls.held, "stream", DEFAULT)
        return stream

    @property
    def end(self) -> int:
        """The place after the last copy."""
        return self.done + len(self.waiting)

    def add(self, copy: Callable[[], object]) -> None:
        """Make a copy later."""
        if self not in self.all:
            self.all.append(self)
        self.waiting.append(copy)

    def run(self, end: int) -> None:
        """Make the copies before a place now."""
        with torch.inference_mode():
            while self.waiting and self.done < end:
                self.done += 1
                LateStream.made += 1
                self.waiting.popleft()()

    def mark(self) -> "Mark":
        """Return a mark after what this stream has got."""
        LateStream.marks[self] = place = LateStream.marks.get(self, 0) + 1
        self.known = {**self.known, self: place}
        return Mark(self, place)

    def synchronize(self) -> None:
        """Make all copies now."""
        self.run(self.end)
        LateStream.host = merged(LateStream.host, self.known)

    def wait_event(self, event: Any) -> None:
        """Let what this stream gets from now on come after an event."""
        self.known = merged(self.known, event.known)
        if self.waiting:
            self.waiting.append(event.make)
        else:
            event.make()

    def wait_stream(self, other: Any) -> None:
        """Let what this stream gets from now on come after what another stream has got."""
        self.wait_event(LateEvent.of(other))

    def record_event(self, event: Any = None) -> Any:
        """Return an event after what this stream has got."""
        found = LateEvent() if event is None else event
        found.record(self)
        return found


Known = Mapping[LateStream, int]
"""How many marks of each stream come before something."""


def merged(one: Known, other: Known) -> Known:
    """Return the marks that come before two things."""
    return {**one, **{key: max(place, one.get(key, 0)) for key, place in other.items()}}


@dataclass(frozen=True)
class Mark:
    """A place in the work of a stream."""

    stream: LateStream
    place: int

    @property
    def over(self) -> bool:
        """Whether the host has waited for it."""
        return self.before(LateStream.host)

    def before(self, known: Known) -> bool:
        """Return whether it comes before something."""
        return known.get(self.stream, 0) >= self.place


def synchronize() -> None:
    """Make all copies of all streams now."""
    for stream in [*LateStream.all]:
        stream.run(stream.end)
    LateStream.host = {**LateStream.marks}


DEFAULT = LateStream()


class LateEvent(CpuEvent):
    """An event after some of the copies of a stream."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.stream, self.end = DEFAULT, 0
        self.known: Known = {}

    @classmethod
    def of(cls, stream: LateStream) -> "LateEvent":
        """Return the event after what a stream has got."""
        event = cls()
        event.record(stream)
        return event

    def record(self, stream: Any = None) -> None:
        """Move this event to the end of a stream."""
        self.stream = LateStream.current() if stream is None else stream
        self.end = self.stream.end
        self.known = merged(self.stream.known, LateStream.host)

    def make(self) -> None:
        """Make the copies before this event."""
        self.stream.run(self.end)

    def query(self) -> bool:
        """Return whether the copies before this event are made."""
        done = self.stream.done >= self.end
        if done:
            LateStream.host = merged(LateStream.host, self.known)
        return done

    def synchronize(self) -> None:
        """Make the copies before this event, and let the host wait for it."""
        self.make()
        LateStream.host = merged(LateStream.host, self.known)

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for this event."""
        (LateStream.current() if stream is None else stream).wait_event(self)


class InStream:
    """Makes a stream the current one. It may be entered several times."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.before = stream, list[Any]()

    def __enter__(self) -> Any:
        self.before.append(LateStream.current())
        if self.stream is not None:
            LateStream.held.stream = self.stream
        return self.stream

    def __exit__(self, *error: object) -> None:
        LateStream.held.stream = self.before.pop()


def late(copy: Callable[..., None]) -> Callable[..., None]:
    """Return a function that lets the current stream make a copy, if this is not the default."""
    signature = inspect.signature(copy)

    @functools.wraps(copy)
    def later(*arguments: Any, **named: Any) -> None:
        given = signature.bind(*arguments, **named)
        stream = LateStream.current()
        if stream is DEFAULT:
            copy(*arguments, **named)
            return
        for held in (given.arguments, given.arguments.get("given", {})):
            held.update({name: held[name].clone() for name in INDICES if name in held})
        stream.add(functools.partial(copy, *given.args, **given.kwargs))

    return later


def paused(copy: Callable[..., Any], part: float = PAUSED) -> Callable[..., Any]:
    """Return a function before a part of whose calls a thread of turns waits for its next turn."""

    @functools.wraps(copy)
    def called(*arguments: Any, **named: Any) -> Any:
        turns = getattr(Turns.held, "turns", None)
        if turns is not None and Clock.chance.random() < part:
            turns.pause()
        return copy(*arguments, **named)

    return called


class Clock:
    """The time of the engine's own limits, and the chance that draws the order of what is late."""

    polls = calls = 0
    chance = Random("copies")

    @classmethod
    def monotonic(cls) -> float:
        """Return the time in seconds."""
        cls.calls += 1  # Its values differ.
        return cls.polls * TICK + cls.calls * 1e-9

    @classmethod
    def seed(cls, number: int) -> None:
        """Draw the order of what is late from a seed."""
        cls.chance = Random(f"copies {number}")

    @classmethod
    def tick(cls) -> None:
        """Make some of what is late."""
        cls.polls += 1
        for thread in [*Turns.all]:
            for _ in range(cls.chance.choice(STEPS)):
                thread.turn()
        for stream in LateStream.all:
            if stream.waiting:
                stream.run(stream.done + cls.chance.choice(STEPS))
