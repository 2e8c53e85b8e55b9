"""The two streams of an engine that overlaps steps, on CUDA: real ones, with real events.

A gate stands in front of each piece of work of the stream that lags: a kernel that spins until
the host opens it, or until MOST_SPINS. The host opens gates only as it waits for what lies
behind them. Imported on CUDA alone: importing Triton decides whether its interpreter is used.

Two things would open a gate too late, and hide a race. Streams may share a connection to the
device, where what one is given waits for the other: those taken here were seen not to. And a
kernel that is used for the first time is loaded by a driver that may wait for the device: so a
schedule is rehearsed with all gates left out.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from reference.kernels.gate import gate_kernel
from subjects.streams import Event, Work

MOST_SPINS = 1_000_000
"""Reads of host memory, each of some 4 microseconds, after which a gate opens by itself.

Nothing of ours waits for what a closed gate holds back, but a driver may: it then loses this
time, and no more.
"""

TRIES, PROBE_SECONDS = 32, 0.2
"""How many pairs of streams are tried, and how long work may take to pass the other's gate."""

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

    def __init__(self, priority: int) -> None:
        self.stream = torch.cuda.Stream(priority=priority)
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

    def passed_by(self, others: Sequence[torch.cuda.Stream]) -> bool:
        """Whether work that is given to the others runs while a gate of this one is closed."""
        self.gates[self] += 1
        self._close(self.gates[self])
        ends = []
        for other in others:
            with torch.cuda.stream(other):
                gate_kernel[(1,)](self._opened, 0, MOST_SPINS)  # Ticket 0's gate stands open.
                ends.append(other.record_event())
        limit = time.monotonic() + PROBE_SECONDS
        while time.monotonic() < limit and not all(end.query() for end in ends):
            time.sleep(PASSING_SECONDS)
        passed = all(end.query() for end in ends)
        self.open_all()
        self.stream.synchronize()
        return passed

    def _close(self, ticket: int) -> None:
        with torch.cuda.stream(self.stream):
            gate_kernel[(1,)](self._opened, ticket, MOST_SPINS)


class CudaStreams:
    """The two streams on CUDA, of which none waits for the other, or for the current one.

    Raises RuntimeError if no such streams are found.
    """

    def __init__(self) -> None:
        # Streams of other priorities rarely share a connection.
        pairs = ((CudaStream(-1), CudaStream(-2)) for _ in range(TRIES))
        found = next((pair for pair in pairs if run_beside(*pair)), None)
        if found is None:
            raise RuntimeError(
                f"steps cannot overlap on this device: of {TRIES} pairs of its streams none runs"
                " while the other waits"
            )
        self.forward, self.schedule = found
        self._rehearses = False

    def lag(self, *, forward: bool) -> None:
        """Let the stream of the forwards lag from now on, or else the other one."""
        self.forward.lags = forward and not self._rehearses
        self.schedule.lags = not forward and not self._rehearses

    @contextmanager
    def rehearsal(self) -> Iterator[bool]:
        """Let neither stream lag while entered: kernels are loaded, and memory is allocated."""
        self._rehearses = True
        try:
            yield True
        finally:
            self._rehearses = False

    def follow_host(self) -> None:
        """Let the host wait for its own device work, which is on neither stream."""
        torch.cuda.current_stream().synchronize()

    def clear(self) -> None:
        """Open all gates and wait for all work: none that was launched can be taken back."""
        for stream in (self.forward, self.schedule):
            stream.open_all()
        torch.cuda.synchronize()


def run_beside(one: CudaStream, other: CudaStream) -> bool:
    """Whether two streams and the current one run work while another of them waits."""
    current = torch.cuda.current_stream()
    return one.passed_by([other.stream, current]) and other.passed_by([one.stream, current])
