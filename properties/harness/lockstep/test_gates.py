"""The gates of real streams: what no wait forbids overtakes, however late a device runs it.

On a CPU a device stands in. A lazy one runs no more than the host waits for, as a GPU does whose
time another process has. An eager one runs at once all that no gate and no wait holds back.
"""

import importlib.util
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy, booleans, integers, lists, sampled_from, tuples
from paritybit.subjects.streams import STALLS, LateStreams, Work

from paritybit.places import SOURCES
from properties.support.interpreting import run_interpreted


class LazyEvent:
    """An event, done once its stream was run up to it."""

    def __init__(self) -> None:
        self.done = True
        self.stream: LazyStream | None = None

    def record(self, stream: "LazyStream") -> None:
        """Stand behind all work of a stream."""
        self.done, self.stream = False, stream
        stream.put(self)

    def query(self) -> bool:
        """Whether it is done."""
        return self.done

    def synchronize(self) -> None:
        """Run its stream up to it."""
        while not self.done:
            assert self.stream is not None
            self.stream.advance()


class Gate:
    """A gate before work of a stream: `cells` are what it shares with the host."""

    def __init__(self, cells: "Cells", ticket: int) -> None:
        self.cells, self.ticket = cells, ticket

    @property
    def open(self) -> bool:
        """Whether the host opened it."""
        return self.cells.numbers[0] >= self.ticket

    def pass_or_give_up(self) -> None:
        """Do what the kernel does."""
        if not self.open:
            self.cells.numbers[0] = self.cells.numbers[1]
            self.cells.numbers[2] += 1


class LazyStream:
    """A stream of a device. `settle` has the device run what it runs unasked."""

    def __init__(self, settle: Work) -> None:
        self.queue = deque[Work | LazyEvent | Gate | tuple[str, LazyEvent]]()
        self.settle = settle

    def put(self, item: Work | LazyEvent | Gate | tuple[str, LazyEvent]) -> None:
        """Queue something."""
        self.queue.append(item)
        self.settle()

    @property
    def held_back(self) -> bool:
        """Whether a closed gate or an event comes next that is not done, or nothing does."""
        if not self.queue:
            return True
        head = self.queue[0]
        return (isinstance(head, Gate) and not head.open) or (
            isinstance(head, tuple) and not head[1].done
        )

    def advance(self) -> None:
        """Run what comes next."""
        head = self.queue.popleft()
        if isinstance(head, LazyEvent):
            head.done = True
        elif isinstance(head, Gate):
            head.pass_or_give_up()
        elif isinstance(head, tuple):
            head[1].synchronize()
        else:
            head()

    def synchronize(self) -> None:
        """Run all."""
        while self.queue:
            self.advance()

    def wait_event(self, event: LazyEvent) -> None:
        """Run nothing more before an event is done."""
        self.put(("wait", event))

    def record_event(self) -> LazyEvent:
        """Return an event behind all work."""
        event = LazyEvent()
        event.record(self)
        return event


class Cells:
    """What stands in for a few numbers in pinned memory."""

    def __init__(self, settle: Work, count: int, **_: Any) -> None:
        self.numbers = [0] * count
        self.settle = settle

    def pin_memory(self) -> "Cells":
        """Return itself."""
        return self

    def copy_(self, other: "Cells", **_: Any) -> None:
        """Copy nothing: nobody reads it."""

    def __getitem__(self, place: int) -> int:
        return self.numbers[place]

    def __setitem__(self, place: int, number: int) -> None:
        self.numbers[place] = number
        self.settle()


class Device:
    """What stands in for torch and its device."""

    int32 = None

    def __init__(self, *, eager: bool = False) -> None:
        self.eager = eager
        self.current = LazyStream(self.settle)
        self.streams = [self.current]
        self.ran: list[str] = []
        self.cuda = SimpleNamespace(
            Stream=self.new_stream,
            Event=LazyEvent,
            stream=self.on,
            current_stream=lambda: self.current,
            synchronize=self.synchronize,
        )
        self.zeros = partial(Cells, self.settle)

    def new_stream(self, priority: int) -> LazyStream:
        """Return a stream of this device."""
        self.streams.append(LazyStream(self.settle))
        return self.streams[-1]

    @contextmanager
    def on(self, stream: LazyStream) -> Iterator[None]:
        """Let a stream be the current one."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self) -> None:
        """Run all there is."""
        for stream in self.streams:
            stream.synchronize()

    def settle(self) -> None:
        """Run, if it is eager, all that nothing holds back."""
        while self.eager and (able := [each for each in self.streams if not each.held_back]):
            able[0].advance()

    def gate(self, cells: Cells, ticket: int, most_spins: int) -> None:
        """Put a gate on the current stream."""
        self.current.put(Gate(cells, ticket))

    def work(self, name: str) -> Work:
        """Return what launches a piece of work, which is logged when it runs."""
        return lambda: self.current.put(lambda: self.ran.append(name))


class Launched:
    """A kernel as Triton launches it, over a grid."""

    def __init__(self, launch: Callable[..., None]) -> None:
        self.launch = launch

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.launch


@pytest.fixture
def lazy() -> Device:
    """A device that runs no more than the host waits for."""
    return Device()


def streams_on(lazy: Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the streams of CUDA on a device that is lazy."""
    kernels = ModuleType("paritybit.reference.kernels.gate")
    vars(kernels)["gate_kernel"] = Launched(lazy.gate)
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    path = SOURCES / "subjects" / "cuda_streams.py"
    spec = importlib.util.spec_from_file_location("paritybit.subjects.lazy_streams", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "torch", lazy)
    monkeypatch.setattr(module, "run_beside", lambda *_: True)
    monkeypatch.setattr(STALLS, "gates", 0)
    found = module.CudaStreams()
    found.clear()
    return found


@pytest.fixture
def streams(lazy: Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The streams of CUDA on that device, whose forwards lag."""
    found = streams_on(lazy, monkeypatch)
    found.lag(forward=True)
    return found


def test_what_waits_for_nothing_runs_before_all_that_is_held_back(
    streams: Any, lazy: Device
) -> None:
    streams.forward.run(lazy.work("copy"))
    streams.forward.run(lazy.work("forward"))
    done = streams.forward.record()
    streams.schedule.run(lazy.work("write"))
    done.synchronise()
    assert lazy.ran == ["write", "copy", "forward"]


def test_what_only_reads_has_no_gate_of_its_own(streams: Any, lazy: Device) -> None:
    streams.forward.run(lazy.work("forward"))
    streams.forward.run(lazy.work("look"), reads=True)
    streams.forward.record().synchronise()
    assert lazy.ran == ["forward", "look"]
    assert streams.forward.opened == 1


def test_what_the_host_asks_in_is_over_before_the_other_stream_goes_on(
    streams: Any, lazy: Device
) -> None:
    """What overtakes the rest of it would be a matter of time."""
    streams.forward.run(lazy.work("copy"))
    streams.forward.run(lazy.work("forward"), asks=True)
    assert lazy.ran == ["copy", "forward"]
    streams.schedule.run(lazy.work("write"))
    streams.clear()
    assert (lazy.ran, STALLS.gates) == (["copy", "forward", "write"], 0)


def test_one_gate_that_gives_up_opens_all_that_were_given_and_is_counted(
    streams: Any, lazy: Device
) -> None:
    """A driver that waits for the device loses the time of one gate."""
    for name in ("copy", "forward", "sample"):
        streams.forward.run(lazy.work(name))
    lazy.synchronize()
    assert lazy.ran == ["copy", "forward", "sample"]
    streams.clear()
    assert STALLS.gates == 1
    streams.forward.run(lazy.work("next"))
    streams.forward.record().synchronise()
    streams.clear()
    assert STALLS.gates == 1


def test_nothing_is_held_back_once_gates_were_opened(streams: Any, lazy: Device) -> None:
    streams.forward.run(lazy.work("forward"))
    streams.open()
    lazy.synchronize()
    streams.clear()
    assert (lazy.ran, STALLS.gates) == (["forward"], 0)


def test_the_host_follows_its_own_work_and_opens_no_gate(streams: Any, lazy: Device) -> None:
    streams.forward.run(lazy.work("forward"))
    lazy.work("of the host")()
    streams.follow_host()
    assert lazy.ran == ["of the host"]


def test_in_a_rehearsal_all_runs_in_the_order_it_is_given(streams: Any, lazy: Device) -> None:
    """No race ends it early: all that is played later is loaded then."""
    with streams.rehearsal() as needed:
        assert needed
        streams.forward.run(lazy.work("forward"))
        assert lazy.ran == ["forward"]
        streams.schedule.run(lazy.work("write"))
    assert lazy.ran == ["forward", "write"]
    streams.clear()
    assert STALLS.gates == 0


Program = list[tuple[str, str, int]]
Pair = tuple[str, str]


def order_of(
    found: Any, program: Program, work: Callable[[str], Work], ran: list[str]
) -> set[Pair]:
    """Return which pieces of the forwards run before which of the schedule's, in a program.

    A piece of work is called by its stream and its place. At the end all is waited for. An event
    that says it is done has all work before it done.
    """
    on = {"forward": found.forward, "schedule": found.schedule}
    given: dict[str, list[str]] = {name: [] for name in on}
    events = [(found.forward.record(), list[str]())]
    for place, (name, does, which) in enumerate(program):
        event, before = events[-1 - which % len(events)]
        if does == "run":
            given[name].append(f"{name} {place}")
            on[name].run(work(f"{name} {place}"))
        elif does == "record":
            events.append((on[name].record(), [*given[name]]))
        elif does == "wait":
            on[name].wait(event)
        elif does == "follow":
            on[name].wait(on["forward" if name == "schedule" else "schedule"].record())
        elif does == "ask":
            assert not event.done or set(before) <= set(ran)
        elif does == "lag":
            found.lag(forward=name == "forward")
        else:
            event.synchronise()
            assert event.done
    for name in ("schedule", "forward"):
        on[name].record().synchronise()
    assert sorted(ran) == sorted(given["forward"] + given["schedule"])
    return {
        (one, other)
        for place, one in enumerate(ran)
        for other in ran[place:]
        if one.split()[0] != other.split()[0]
    }


def programs(*does: str) -> SearchStrategy[Program]:
    """Return programs of some kinds of steps: of a stream each, and of an event."""
    streams = sampled_from(("forward", "schedule"))
    return lists(tuples(streams, sampled_from(does), integers(0, 3)), min_size=6, max_size=20)


MANY = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
"""A program takes milliseconds, and few of them have each piece of work wait for the other."""

STEPS = ("run", "run", "record", "wait", "follow", "synchronise", "ask")


@given(program=programs(*STEPS), forward=booleans(), eager=booleans())
@MANY
def test_real_streams_run_in_the_order_of_the_emulated_ones(
    program: Program, forward: bool, eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lags and waits: however late or soon a device runs it, the same overtakes."""
    emulated, log, lazy = LateStreams(), list[str](), Device(eager=eager)
    with monkeypatch.context() as patch:
        real = streams_on(lazy, patch)
        for found in (emulated, real):
            found.lag(forward=forward)
        right = order_of(emulated, program, lambda name: lambda: log.append(name), log)
        assert order_of(real, program, lazy.work, lazy.ran) == right
        real.clear()
        assert STALLS.gates == 0


@given(program=programs(*STEPS, "lag"), eager=booleans())
@MANY
def test_no_gate_gives_up_whichever_streams_lag_in_turn(
    program: Program, eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for what is behind a gate that is closed."""
    lazy = Device(eager=eager)
    with monkeypatch.context() as patch:
        real = streams_on(lazy, patch)
        order_of(real, program, lazy.work, lazy.ran)
        real.clear()
        assert STALLS.gates == 0


def test_a_gate_that_gives_up_opens_what_was_given_and_one_that_was_opened_does_not() -> None:
    """The kernel itself, interpreted."""
    done = run_interpreted("properties.support.subjects.gate_gives_up")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[3, 3, 1]", "[2, 3, 0]"]
