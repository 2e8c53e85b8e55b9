"""The one executor of every campaign: independent tasks, spread over worker processes.

A task is plain data and `run` a function of a module, so that both can be handed to a fresh
process. Whatever happens to one task, the rest finishes. What a task is about (trials,
properties, devices) is not known here.
"""

import gc
import multiprocessing
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, process, resource_tracker
from typing import Any, Generic, Protocol, TypeVar

from paritybit.harness.errors import headline
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.machine.forks import KERNELS, Forked, end_with_asker, preload, undisturbed
from paritybit.harness.machine.gpus import VISIBLE
from paritybit.harness.machine.workers import Workers

JOIN_SECONDS = 10.0
"""How long a process that was killed may take to go."""


class Reported(Protocol):
    """What running a task gives. After `spoiled` its process must not run another task."""

    @property
    def spoiled(self) -> bool:
        """Whether the process is of no use any more: it lost its device, or an error was raised."""
        ...


T = TypeVar("T")
R = TypeVar("R", bound=Reported)


@dataclass(frozen=True)
class Campaign(Generic[T, R]):
    """What is done with every task of a campaign.

    `run` carries a task out. `shared` names what a process keeps from one task to the next, such
    as a captured trial: tasks of one name go to one process where possible. `own` is a finer name,
    of what is kept for some of these tasks only; where it is None, `shared` serves as it.
    `seconds` is how long a task may take; one that takes longer is taken to hang. `variables` is a
    pattern of the environment variables that its processes are given; None gives them all. With a
    pattern they are started afresh, since a fork would still have the others in its memory.
    `label` says what a task is called.
    """

    run: Callable[[T], R]
    shared: Callable[[T], Hashable]
    seconds: Callable[[T], float]
    variables: re.Pattern[str] | None = None
    own: Callable[[T], Hashable] | None = None
    label: Callable[[T], str] = str


@dataclass(frozen=True)
class Ended(Generic[T, R]):
    """How one task ended: with a result, or with an error, which holds no absolute path."""

    task: T
    seconds: float
    result: R | None = None
    error: str | None = None


def variables_of(variables: re.Pattern[str] | None, gpu: str | None = None) -> dict[str, str]:
    """Return of this process's environment what a pattern matches as a whole; None is all.

    With `gpu` a process that is given it sees that one alone by CUDA.
    """
    pinned = {} if gpu is None else {VISIBLE: gpu}
    given = {
        name: value
        for name, value in os.environ.items()
        if variables is None or variables.fullmatch(name)
    }
    return given | pinned


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Let this process's environment be another, until the end."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def outcome_of(run: Callable[[T], R], task: T) -> tuple[R | None, str | None]:
    """Return what a task gives, or the traceback of what it raises."""
    try:
        return run(task), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, traceback_of(error)


def _serve(pipe: connection.Connection, run: Callable[[Any], Any]) -> None:
    """Run the tasks that come through a pipe, in a worker process, and send back what they give."""
    with suppress(EOFError, BrokenPipeError):  # The process that started this one is gone.
        while True:
            task = pipe.recv()
            result, error = outcome_of(run, task)
            try:
                pipe.send((result, error))
            except Exception as unsendable:
                pipe.send((None, traceback_of(unsendable)))


def _serve_apart(pipe: connection.Connection, run: Callable[[Any], Any]) -> None:
    """Serve in a process that was not forked."""
    end_with_asker(pipe)
    gc.freeze()  # What was imported is never garbage: the collector passes over it.
    _serve(pipe, run)


def _started_apart(
    run: Callable[[Any], Any], variables: Mapping[str, str]
) -> tuple[process.BaseProcess, connection.Connection]:
    """Return a process that has never had any other variable, and the pipe to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # No daemon: a task may start processes of its own.
    started = context.Process(target=_serve_apart, args=(theirs, run))
    # Starting it, the first process would let SIGINT through again.
    resource_tracker.ensure_running()
    with undisturbed(), environment(variables):
        started.start()
    theirs.close()
    return started, ours


class _Worker(Generic[T, R]):
    """A process of its own that runs one task at a time and leaves Ctrl-C to this process."""

    task: T

    def __init__(self, campaign: Campaign[T, R], gpu: str | None) -> None:
        variables = variables_of(campaign.variables, gpu)
        self.process: process.BaseProcess | Forked
        if campaign.variables is None:
            self.process = Forked(_serve, campaign.run, variables=variables)
            self.pipe = self.process.pipe
        else:
            self.process, self.pipe = _started_apart(campaign.run, variables)
        self.busy = False
        self.usable = True
        self.started = self.deadline = 0.0

    @property
    def gone(self) -> bool:
        """Whether the process, which is idle, has ended: it says nothing else meanwhile."""
        return self.pipe.poll() or not self.process.is_alive()

    def give(self, task: T, seconds: float) -> None:
        """Have the process run a task, for so many seconds at most."""
        self.task, self.busy = task, True
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        with suppress(OSError):  # It has just died: `collect` says so.
            self.pipe.send(task)

    def collect(self) -> Ended[T, R]:
        """Return how the task ended, of a process that has answered, has died or is overdue."""
        result: R | None = None
        error: str | None = None
        try:
            if self.pipe.poll():
                result, error = self.pipe.recv()
            else:
                allowed = self.deadline - self.started
                error = f"it took more than {allowed:.0f} s and was killed"
        except (EOFError, OSError):
            self.process.join(JOIN_SECONDS)
            error = f"the process died with exit code {self.process.exitcode}"
        except Exception as unreadable:
            error = traceback_of(unreadable)
        self.busy = False
        self.usable = result is not None and not result.spoiled
        return Ended(self.task, time.monotonic() - self.started, result, error)

    def end(self) -> None:
        """End the process at once, whatever it does."""
        self.process.kill()
        self.pipe.close()  # By which it ends, too, if it is forked only later.
        self.process.join(JOIN_SECONDS)


class Waiting(Generic[T, R]):
    """The tasks that no process has been given yet, in order."""

    def __init__(self, campaign: Campaign[T, R], tasks: Iterable[T]) -> None:
        self.shared, self.own = campaign.shared, campaign.own or campaign.shared
        self.tasks = [self._keyed(task) for task in tasks]

    def __bool__(self) -> bool:
        return bool(self.tasks)

    def take(self, last: T | None, running: Sequence[T]) -> T:
        """Take the task for which a process that last ran `last` has to build the least anew.

        First choice is a task with the `shared` and `own` of the last one; then one with the same
        `shared`, whose `own` no running task has; then one whose `shared` no running task has.
        Else one whose `own` no running task has, if there is one, from the group with the most
        tasks left for each process that is busy with it. What two processes need is built twice.
        """
        shared = Counter(self.shared(task) for task in running)
        own = {self.own(task) for task in running}
        mine = [(self.shared(task), self.own(task)) for task in (last,) if task is not None]
        place = self._first(lambda group, alone: (group, alone) in mine)
        if place is None and mine:
            place = self._first(lambda group, alone: group == mine[0][0] and alone not in own)
        if place is None:
            place = self._first(lambda group, _: group not in shared)
        if place is None:
            left = Counter(group for group, _, _ in self.tasks)

            def gain(place: int) -> tuple[bool, float]:
                group, alone, _ = self.tasks[place]
                return alone not in own, left[group] / shared[group]

            place = max(range(len(self.tasks)), key=gain)
        return self.tasks.pop(place)[2]

    def put_back(self, task: T) -> None:
        """Have a task wait again, before all others."""
        self.tasks.insert(0, self._keyed(task))

    def _keyed(self, task: T) -> tuple[Hashable, Hashable, T]:
        """Return what a task shares, what it has of its own, and the task."""
        return self.shared(task), self.own(task), task

    def _first(self, fits: Callable[[Hashable, Hashable], bool]) -> int | None:
        """Return the place of the first task of which that fits what it shares and has."""
        keys = enumerate(self.tasks)
        return next((place for place, (group, own, _) in keys if fits(group, own)), None)


def _hand_out(
    campaign: Campaign[T, R],
    workers: list[_Worker[T, R] | None],
    waiting: Waiting[T, R],
    pin: Callable[[int], str | None],
) -> None:
    """Give every idle process a task, while there are tasks; start those that are not there."""
    for place, worker in enumerate(workers):
        if not waiting or (worker is not None and worker.busy):
            continue
        running = [other.task for other in workers if other is not None and other.busy]
        task = waiting.take(worker.task if worker is not None else None, running)
        if worker is None or worker.gone:
            worker = workers[place] = _Worker(campaign, pin(place))  # noqa: PLW2901
        worker.give(task, campaign.seconds(task))


def _ready(busy: Sequence[_Worker[T, R]]) -> list[_Worker[T, R]]:
    """Wait for the processes that have answered, have died or are overdue."""
    soonest = min(worker.deadline for worker in busy)
    answered = connection.wait(
        [worker.pipe for worker in busy], max(0.0, soonest - time.monotonic())
    )
    now = time.monotonic()
    return [worker for worker in busy if worker.pipe in answered or worker.deadline <= now]


class _TooLongError(BaseException):
    """A task of this process took too long. No Exception, so that nothing swallows it."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise what ends a task once it has taken too long; signals reach the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise _TooLongError(f"it took more than {seconds:.0f} s and was killed")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _run_here(campaign: Campaign[T, R], task: T) -> Ended[T, R]:
    """Run a task in this process."""
    started, seconds = time.monotonic(), campaign.seconds(task)
    with alarm(seconds):
        result, error = outcome_of(campaign.run, task)
    return Ended(task, time.monotonic() - started, result, error)


def execute(
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    workers: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run every task, in the processes of `workers` or, if these are none, in this one.

    `on_end` is called with each end as it comes. A task that takes too long is ended, and one
    whose process dies is lost: both end with an error, and so does one that raises, whose
    error is its whole traceback. Such a process is replaced. In this process a hang outside
    Python, or its death, cannot be helped. Ctrl-C ends all processes at once, and so
    does whatever ends this process.

    Under MPS a task that spoiled its process may be another one's victim: it is run again, with
    no other beside it, and ends as it ends then.
    """
    again_under_mps(_spread, campaign, tasks, workers, on_end)


def again_under_mps(
    spread: Callable[[Campaign[T, R], Iterable[T], Workers, Callable[[Ended[T, R]], None]], None],
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    workers: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run every task by `spread`; under MPS, what spoiled its process a second time and alone.

    The workers take note of these.
    """
    again: list[T] = []

    def on_first_end(ended: Ended[T, R]) -> None:
        if workers.mps and (ended.result is None or ended.result.spoiled):
            again.append(ended.task)
            workers.again.append((campaign.label(ended.task), why_spoiled(ended)))
        else:
            on_end(ended)

    spread(campaign, tasks, workers, on_first_end)
    for task in again:
        spread(campaign, [task], workers.at_most(1), on_end)


def why_spoiled(ended: Ended[T, R]) -> str:
    """Return in one line what spoiled the process of a task that has ended."""
    error = ended.error or getattr(ended.result, "error", None)
    return headline(error) if error else "its process lost the device"


def _spread(
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    spread_over: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run every task, in as many processes as there are to be, and end these."""
    waiting = Waiting(campaign, tasks)
    if spread_over.processes == 0:
        last = None
        while waiting:
            last = waiting.take(last, ())
            on_end(_run_here(campaign, last))
        return
    workers: list[_Worker[T, R] | None] = [None] * spread_over.processes
    if campaign.variables is None:
        preload([campaign.run.__module__, *(KERNELS if spread_over.gpus else ())])
    try:
        while True:
            _hand_out(campaign, workers, waiting, spread_over.pin)
            busy = [worker for worker in workers if worker is not None and worker.busy]
            if not busy:
                return
            for worker in _ready(busy):
                ended = worker.collect()
                if not worker.usable:
                    worker.end()
                    workers[workers.index(worker)] = None
                on_end(ended)
    finally:
        with undisturbed(signal.SIGINT, signal.SIGTERM):
            for started in filter(None, workers):
                started.end()
