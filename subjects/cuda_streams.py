"""The two streams of an engine that overlaps steps, on CUDA: real streams with real events.

Each piece of work on the lagging stream has a gate in front of it: a kernel that spins until the
host opens the gate, or until MOST_SPINS. The host opens a gate only when it waits for work behind
it.

The order of work does not depend on timing. Before the host opens a gate, it waits for all work on
the other stream that no closed gate holds back. For each piece of work the host knows which gates
precede it: those of its own stream and, through the events that were waited for, those of the other
stream. When the work behind a gate begins, everything that no wait forbids has therefore run, even
if other processes use the GPU meanwhile. This holds as long as no gate opens by itself. `STALLS`
counts gates that do.

Two things would open a gate too late and hide a race. First, streams may share a connection to the
device, where work on one waits for work on the other. The streams chosen here have been checked for
that. Second, a driver that loads a kernel for its first use may wait for the device. Schedules are
therefore rehearsed without gates, and gates are opened before any other device work.

Import this only on CUDA: importing Triton decides whether its interpreter is used.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from paritybit.reference.kernels.gate import gate_kernel
from paritybit.subjects.streams import STALLS, Event, Work
from torch import Tensor

MOST_SPINS = 1_000_000
"""Reads of host memory, about 4 microseconds each, after which a gate opens by itself.

No work here waits for what a closed gate holds back, but a driver may. It then loses this time only
once, because all later gates open too.
"""

OPENED, GIVEN, GAVE_UP = range(3)
"""Cells of shared memory: the last ticket opened, the last one issued, and gates timed out."""

TRIES, PROBE_SECONDS = 32, 0.2
"""The number of pairs of streams to try, and the seconds that work may take to pass a gate."""

POLL_SECONDS = 0.0005
"""The interval in seconds between checks whether work has passed."""


class CudaEvent:
    """An event after a stream's work. `gates` are the last that must open before it is done."""

    def __init__(self, stream: "CudaStream") -> None:
        others = {other: ticket for other, ticket in stream.gates.items() if other is not stream}
        self.gates = {**others, stream: stream.gates[stream]}
        self.event = torch.cuda.Event()
        self.event.record(stream.stream)

    @property
    def done(self) -> bool:
        """Whether all work before it has run."""
        return bool(self.event.query())

    @property
    def held_back(self) -> bool:
        """Whether a gate before it is closed."""
        return any(ticket > stream.opened for stream, ticket in self.gates.items())

    def synchronise(self) -> None:
        """Open the gates before it, and block the host until all work before it has run."""
        self.open()
        self.event.synchronize()

    def open(self) -> None:
        """Open the gates before it."""
        for stream, ticket in self.gates.items():
            stream.open(ticket)


class CudaStream:
    """A CUDA stream with gates. `lags` says whether work queued from now on gets a gate.

    `beside` is the stream that continues meanwhile. `opened` is the last ticket whose gate was
    opened. With `in_order` the host waits for each piece of work after queueing it.
    """

    def __init__(self, priority: int) -> None:
        self.stream = torch.cuda.Stream(priority=priority)
        self.lags = self.in_order = False
        self.beside: CudaStream | None = None
        self.opened = 0
        self.gates: dict[CudaStream, int] = {self: 0}
        self._cells: Tensor = torch.zeros(3, dtype=torch.int32).pin_memory()
        self._behind: dict[int, CudaEvent] = {}
        self._ungated: deque[CudaEvent] = deque()
        with torch.cuda.stream(self.stream):
            self._copied = torch.zeros(3, dtype=torch.int32, device="cuda")
        self._returned: Tensor = torch.zeros(3, dtype=torch.int32).pin_memory()
        self._close(0)
        self.stream.synchronize()

    def run(self, work: Work, *, asks: bool = False, reads: bool = False) -> None:
        """Queue a piece of work, behind a gate if the stream lags.

        If the host waits for the device within the work (`asks`), the work gets no gate, the gates
        before it are opened, and the host waits for it. Otherwise the order relative to the other
        stream would depend on timing.
        """
        if asks:
            self.record().open()
        gated = self.lags and not (asks or reads or self.in_order)
        if gated:
            self._close_next()
        with torch.cuda.stream(self.stream):
            work()
        behind = self.record()
        if gated:
            self._behind[self.gates[self]] = behind
        else:
            if self._ungated and self._ungated[-1].gates == behind.gates:
                self._ungated.pop()
            self._ungated.append(behind)
        if self.in_order or asks:
            self.stream.synchronize()

    def record(self) -> CudaEvent:
        """Return an event after all work queued so far."""
        return CudaEvent(self)

    def wait(self, event: Event) -> None:
        """Run work that is queued from now on only when `event` is done."""
        assert isinstance(event, CudaEvent)
        self.stream.wait_event(event.event)
        for stream, ticket in event.gates.items():
            self.gates[stream] = max(ticket, self.gates.get(stream, 0))

    def open(self, last: int) -> None:
        """Open every gate up to the one of ticket `last`, one after another.

        Each gate is opened only when the other stream has run as far as it can and the work behind
        the gate waits for nothing else.
        """
        for ticket in range(self.opened + 1, last + 1):
            behind = self._behind.pop(ticket)
            for stream, before in behind.gates.items():
                if stream is not self:
                    stream.open(before)
            if self.beside is not None:
                self.beside.go_on()
            self._cells[OPENED] = self.opened = ticket
            behind.event.synchronize()

    def go_on(self) -> None:
        """Wait for all work without a gate that no closed gate holds back."""
        last = None
        while self._ungated and not self._ungated[0].held_back:
            last = self._ungated.popleft()
        if last is not None:
            last.event.synchronize()

    def open_all(self) -> None:
        """Open every gate without waiting, and count those that timed out."""
        self._cells[OPENED] = self.opened = self.gates[self]
        self._behind.clear()
        STALLS.gates += int(self._cells[GAVE_UP])
        self._cells[GAVE_UP] = 0

    def clear(self) -> None:
        """Open every gate, and discard the records of queued work."""
        self.open_all()
        self._ungated.clear()

    def passed_by(self, others: Sequence[torch.cuda.Stream]) -> bool:
        """Whether work on the other streams runs while a gate of this one is closed.

        Copies in each direction have their own connections, so they are tried too.
        """
        self._close_next()
        with torch.cuda.stream(self.stream):
            self._copied.copy_(self._cells, non_blocking=True)
        ends = []
        for other in others:
            with torch.cuda.stream(other):
                self._copied.copy_(self._cells, non_blocking=True)
                gate_kernel[(1,)](self._cells, 0, MOST_SPINS)  # The gate of ticket 0 is open.
                self._returned.copy_(self._copied, non_blocking=True)
                ends.append(other.record_event())
        limit = time.monotonic() + PROBE_SECONDS
        while time.monotonic() < limit and not all(end.query() for end in ends):
            time.sleep(POLL_SECONDS)
        passed = all(end.query() for end in ends)
        self.open_all()
        self.stream.synchronize()
        for end in ends:
            end.synchronize()
        return passed

    def _close_next(self) -> None:
        self.gates[self] += 1
        self._close(self.gates[self])

    def _close(self, ticket: int) -> None:
        self._cells[GIVEN] = ticket
        with torch.cuda.stream(self.stream):
            gate_kernel[(1,)](self._cells, ticket, MOST_SPINS)


class CudaStreams:
    """The two streams on CUDA. Neither waits for the other, or for the current stream.

    Raises RuntimeError if no such streams are found.
    """

    def __init__(self) -> None:
        # Streams of different priorities rarely share a connection.
        pairs = ((CudaStream(-1), CudaStream(-2)) for _ in range(TRIES))
        found = next((pair for pair in pairs if run_beside(*pair)), None)
        if found is None:
            raise RuntimeError(
                f"steps cannot overlap on this device: in {TRIES} attempts no two streams "
                "ran independently"
            )
        self.forward, self.schedule = found
        self.forward.beside, self.schedule.beside = self.schedule, self.forward

    def lag(self, *, forward: bool) -> None:
        """Let the forward stream lag from now on if `forward`, else the other one."""
        self.forward.lags, self.schedule.lags = forward, not forward

    @contextmanager
    def rehearsal(self) -> Iterator[bool]:
        """Run all work in order while entered. This loads kernels and allocates memory."""
        self.forward.in_order = self.schedule.in_order = True
        try:
            yield True
        finally:
            self.forward.in_order = self.schedule.in_order = False

    def open(self) -> None:
        """Open all gates without waiting."""
        for stream in (self.forward, self.schedule):
            stream.open_all()

    def follow_host(self) -> None:
        """Block the host until its own device work, outside both streams, is done."""
        torch.cuda.current_stream().synchronize()

    def clear(self) -> None:
        """Open all gates and wait for all work, because launched work cannot be discarded."""
        for stream in (self.forward, self.schedule):
            stream.clear()
        torch.cuda.synchronize()


def run_beside(one: CudaStream, other: CudaStream) -> bool:
    """Whether two streams and the current one each run work while another of them waits."""
    current = torch.cuda.current_stream()
    return one.passed_by([other.stream, current]) and other.passed_by([one.stream, current])
