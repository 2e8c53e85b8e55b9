"""Overlapping steps: the order of device work and host work in an engine that plans ahead.

While a forward is in flight the host plans the next one: it frees, allocates, writes the index
tables and stages the next batch. Four waits prevent races:

- The host rewrites a pinned buffer only after the copies from it have run.
- A forward reads the tables only after they are written.
- Freed rows and slots are rewritten only after the forward in flight has run.
- So are slots that left a window.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from paritybit.reference.order import Arrived, HostValues, InOrder, transfer
from paritybit.subjects.streams import Event, StreamPair
from torch import Tensor

Result = TypeVar("Result")

PINNED_ELEMENTS = 4096
"""The number of elements of a pinned buffer, more than any batch has."""


@dataclass(frozen=True)
class Staged:
    """The int64 values of a batch on the host, and in the pinned buffers to copy from."""

    host: Mapping[str, Tensor]
    pinned: Mapping[str, Tensor]


@dataclass
class Flight(Generic[Result]):
    """A forward in flight. `result` is available once `done` is."""

    done: Event
    results: list[Result]

    @property
    def result(self) -> Result:
        """Wait for the forward and the work that follows it, and return the forward's result."""
        self.done.synchronise()
        return self.results[0]


class Overlap(InOrder):
    """The order of an engine's device work on two streams, with the waits it needs.

    All staged batches share the pinned buffers, one per name. Call `clear` before anything else.
    """

    copied: Event | None
    written: Event | None
    in_flight: Event | None

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.streams = StreamPair()
        self.buffers: dict[str, Tensor] = {}

    def clear(self) -> None:
        """Start again with nothing in flight."""
        self.streams.clear()
        self.copied = self.written = self.in_flight = None

    def write(self, values: HostValues, work: Callable[[Arrived], None]) -> None:
        """Write to tables on the schedule stream, from host memory that is used once."""
        once, _ = transfer(values, self.device)
        self.streams.schedule.run(lambda: work(arrived(once)))
        self.written = self.streams.schedule.record()

    def freeing(self) -> None:
        """Delay writes for the next owners until the forward in flight has run."""
        self.wait_for_forward()

    def evicting(self) -> None:
        """Delay unmapping until the forward in flight has run: its windows begin earlier."""
        self.wait_for_forward()

    def wait_for_forward(self) -> None:
        """Let the schedule stream wait for the forward in flight."""
        if self.in_flight is not None:
            self.streams.schedule.wait(self.in_flight)

    def wait_for_tables(self) -> None:
        """Let the forward stream wait for all writes to the tables."""
        if self.written is not None:
            self.streams.forward.wait(self.written)

    def stage(self, values: HostValues) -> Staged:
        """Fill the pinned buffers with a batch's values."""
        if self.copied is not None:
            self.copied.synchronise()
        pinned = {name: self.fill(name, numbers) for name, numbers in values.items()}
        host, _ = transfer(values, self.device)
        return Staged(host, pinned)

    def fill(self, name: str, numbers: Sequence[int]) -> Tensor:
        """Fill the pinned buffer of a name, and return the part that holds the values."""
        if name not in self.buffers:
            self.buffers[name] = torch.zeros(PINNED_ELEMENTS, dtype=torch.int64)
        part = self.buffers[name][: len(numbers)]
        part.copy_(torch.tensor(numbers, dtype=torch.int64))
        return part

    def launch(
        self,
        staged: Staged | None,
        forward: Callable[[Arrived], Result],
        follow: Callable[[Result], None],
    ) -> Flight[Result]:
        """Start the forward of a staged batch (None if it is idle) and the work that follows it.

        `forward` gets the batch's values on the device, `follow` the result of `forward`.
        """
        stream, results = self.streams.forward, list[Result]()
        values: dict[str, Tensor] = {}
        if staged is not None:
            pinned = staged.pinned
            stream.run(lambda: values.update(arrived(pinned)))
            self.copied = stream.record()
        self.wait_for_tables()
        stream.run(lambda: results.append(forward(values)))
        stream.run(lambda: follow(results[0]))
        self.in_flight = stream.record()
        return Flight(stream.record(), results)


def arrived(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the device, made now."""
    return {name: tensor.clone() for name, tensor in values.items()}
