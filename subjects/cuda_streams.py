"""The two streams of an engine that overlaps steps, on CUDA: real ones, with real events.

A gate stands in front of each piece of work of the stream that lags: a kernel that spins until
the host opens it, or until MOST_SPINS. The host opens gates only as it waits for what lies
behind them.

What overtakes is no matter of time. Before it opens a gate the host waits for all that the other
stream was given and no closed gate holds back: it knows of each piece of work which gates stand
before it, its own stream's and, through the events that were waited for, the other's. So whatever
no wait forbids has run when the piece behind the gate begins, also where other processes have the
GPU meanwhile. This holds as long as no gate opens by itself: `STALLS` counts those.

Two things would open a gate too late, and hide a race. Streams may share a connection to the
device, where what one is given waits for the other: those taken here were seen not to. And a
kernel that is used for the first time is loaded by a driver that may wait for the device: so a
schedule is rehearsed with all gates left out, and gates are opened before anything else is done.

Imported on CUDA alone: importing Triton decides whether its interpreter is used.
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
"""Reads of host memory, each of some 4 microseconds, after which a gate opens by itself.

Nothing of ours waits for what a closed gate holds back, but a driver may: it then loses this
time, and no more, since with that gate all open that were given.
"""

OPENED, GIVEN, GAVE_UP = range(3)
"""What host and gates share: the last tickets that were opened and given, how many gave up."""

TRIES, PROBE_SECONDS = 32, 0.2
"""How many pairs of streams are tried, and how long work may take to pass the other's gate."""

POLL_SECONDS = 0.0005
"""How often it is looked whether it passed."""


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

    @property
    def held_back(self) -> bool:
        """Whether a gate before it is closed."""
        return any(ticket > stream.opened for stream, ticket in self.gates.items())

    def synchronise(self) -> None:
        """Open the gates before it, and let the host wait until all work before it has run."""
        self.open()
        self.event.synchronize()

    def open(self) -> None:
        """Open the gates before it."""
        for stream, ticket in self.gates.items():
            stream.open(ticket)


class CudaStream:
    """A CUDA stream with gates. `lags` says whether the work given from now on gets one.

    `beside` is the stream that goes on meanwhile. `opened` is the last ticket whose gate was
    opened. With `in_order` the host waits for each piece of work as it gives it.
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
        """Give the stream a piece of work, behind a gate if it lags.

        Where the host asks the device in it, there is none, those before it are opened, and the
        host waits for all of it: what of it the other stream overtakes would be a matter of time.
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

        Each is opened once the other stream has gone on as far as it can, and what is behind it
        waits for nothing but its gate.
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
        """Wait for all that was given without a gate and that no closed gate holds back."""
        last = None
        while self._ungated and not self._ungated[0].held_back:
            last = self._ungated.popleft()
        if last is not None:
            last.event.synchronize()

    def open_all(self) -> None:
        """Open every gate there is, without waiting, and count those that gave up."""
        self._cells[OPENED] = self.opened = self.gates[self]
        self._behind.clear()
        STALLS.gates += int(self._cells[GAVE_UP])
        self._cells[GAVE_UP] = 0

    def clear(self) -> None:
        """Open every gate, and forget what was given."""
        self.open_all()
        self._ungated.clear()

    def passed_by(self, others: Sequence[torch.cuda.Stream]) -> bool:
        """Whether what is given to the others runs while a gate of this one is closed.

        Copies have connections of their own, whichever way they go.
        """
        self._close_next()
        with torch.cuda.stream(self.stream):
            self._copied.copy_(self._cells, non_blocking=True)
        ends = []
        for other in others:
            with torch.cuda.stream(other):
                self._copied.copy_(self._cells, non_blocking=True)
                gate_kernel[(1,)](self._cells, 0, MOST_SPINS)  # Ticket 0's gate stands open.
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
    """The two streams on CUDA, of which none waits for the other, or for the current one.

    Raises RuntimeError if no such streams are found.
    """

    def __init__(self) -> None:
        # Streams of other priorities rarely share a connection.
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
        """Let the stream of the forwards lag from now on, or else the other one."""
        self.forward.lags, self.schedule.lags = forward, not forward

    @contextmanager
    def rehearsal(self) -> Iterator[bool]:
        """Run all in order while entered: kernels are loaded, and memory is allocated."""
        self.forward.in_order = self.schedule.in_order = True
        try:
            yield True
        finally:
            self.forward.in_order = self.schedule.in_order = False

    def open(self) -> None:
        """Open all gates, without waiting."""
        for stream in (self.forward, self.schedule):
            stream.open_all()

    def follow_host(self) -> None:
        """Let the host wait for its own device work, which is on neither stream."""
        torch.cuda.current_stream().synchronize()

    def clear(self) -> None:
        """Open all gates and wait for all work: none that was launched can be taken back."""
        for stream in (self.forward, self.schedule):
            stream.clear()
        torch.cuda.synchronize()


def run_beside(one: CudaStream, other: CudaStream) -> bool:
    """Whether two streams and the current one run work while another of them waits."""
    current = torch.cuda.current_stream()
    return one.passed_by([other.stream, current]) and other.passed_by([one.stream, current])
