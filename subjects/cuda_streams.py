"""The two streams of an engine that overlaps steps, on CUDA: real ones, with real events.

A gate stands in front of each piece of work of the stream that lags: a kernel that spins until
the host opens it, or until MOST_SPINS. The host opens gates only as it waits for what lies
behind them. Imported on CUDA alone: importing Triton decides whether its interpreter is used.
"""

import time

import torch
from torch import Tensor

from reference.kernels.gate import gate_kernel
from subjects.streams import Event, Work

MOST_SPINS = 1_000_000
"""Reads of host memory, each of some 4 microseconds, after which a gate opens by itself.

Nothing of ours waits for what a closed gate holds back, but a driver may: it then loses this
time, and no more.
"""

PASSING_SECONDS = 0.0005
"""How long the other stream is given to go on, each time that a piece of the one that lags ran."""


class CudaEvent:
    """An event behind a stream's work. `gates` are the last ones to open before it can be done."""

    def __init__(self, stream: "CudaStream") -> None:
        others = {other: ticket for other, ticket in stream.gates.items() if other is not stream}
        self.gates = {**others, stream: stream.gates[stream]}
        self.event = torch.cuda.Event()
        self.event.record(stream.stream)

    @property
    def done(self) -> bool:
        """Whether all work before it has run."""
        return bool(self.event.query())

    def synchronise(self) -> None:
        """Open the gates before it, and let the host wait until all work before it has run."""
        self.open()
        self.event.synchronize()

    def open(self) -> None:
        """Open the gates before it."""
        for stream, ticket in self.gates.items():
            stream.open(ticket)


class CudaStream:
    """A CUDA stream with gates. `lags` says whether the work given from now on gets one."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.lags = False
        self.gates: dict[CudaStream, int] = {self: 0}
        self._opened: Tensor = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._behind: dict[int, torch.cuda.Event] = {}
        self._close(0)
        self.stream.synchronize()

    def run(self, work: Work, *, asks: bool = False) -> None:
        """Give the stream a piece of work, behind a gate if it lags.

        Where the host asks the device in it, there is none, and those before it are opened.
        """
        if asks:
            self.record().open()
        gated = self.lags and not asks
        if gated:
            self.gates[self] += 1
            self._close(self.gates[self])
        with torch.cuda.stream(self.stream):
            work()
        if gated:
            behind = self._behind[self.gates[self]] = torch.cuda.Event()
            behind.record(self.stream)

    def record(self) -> CudaEvent:
        """Return an event behind all work given so far."""
        return CudaEvent(self)

    def wait(self, event: Event) -> None:
        """Run nothing that is given from now on before `event` is done."""
        assert isinstance(event, CudaEvent)
        self.stream.wait_event(event.event)
        for stream, ticket in event.gates.items():
            self.gates[stream] = max(ticket, self.gates.get(stream, 0))

    def open(self, last: int) -> None:
        """Open every gate up to the one of ticket `last`, one after the other.

        What stands before a gate waits for other streams of itself.
        """
        for ticket in range(int(self._opened[0]) + 1, last + 1):
            self._opened[0] = ticket
            self._behind.pop(ticket).synchronize()
            time.sleep(PASSING_SECONDS)

    def open_all(self) -> None:
        """Open every gate there is, without waiting."""
        self._opened[0] = self.gates[self]
        self._behind.clear()

    def _close(self, ticket: int) -> None:
        with torch.cuda.stream(self.stream):
            gate_kernel[(1,)](self._opened, ticket, MOST_SPINS)


class CudaStreams:
    """The two streams on CUDA."""

    def __init__(self) -> None:
        self.forward = CudaStream()
        self.schedule = CudaStream()

    def lag(self, *, forward: bool) -> None:
        """Let the stream of the forwards lag from now on, or else the other one."""
        self.forward.lags, self.schedule.lags = forward, not forward

    def follow_host(self) -> None:
        """Let the host wait for its own device work, which is on neither stream."""
        torch.cuda.current_stream().synchronize()

    def clear(self) -> None:
        """Open all gates and wait for all work: none that was launched can be taken back."""
        for stream in (self.forward, self.schedule):
            stream.open_all()
        torch.cuda.synchronize()
