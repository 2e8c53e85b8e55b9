"""The executor of all campaigns. It runs independent tasks in worker processes.

A task is plain data and `run` is a module-level function, so both can be sent to a new process. If
one task fails, the others still finish. The executor knows nothing about trials or devices.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, Generic, Protocol, TypeVar

from paritybit.harness.errors import headline
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.machine.forks import KERNELS, Forked, preload, undisturbed
from paritybit.harness.machine.gpus import VISIBLE
from paritybit.harness.machine.workers import Workers

JOIN_SECONDS = 10.0
"""Seconds that a killed process may take to end."""


class Reported(Protocol):
    """The result of a task. If `spoiled`, its process must not run another task."""

    @property
    def spoiled(self) -> bool:
        """Whether the process is no longer usable because of a lost device or an error."""
        ...


T = TypeVar("T")
R = TypeVar("R", bound=Reported)


@dataclass(frozen=True)
class Campaign(Generic[T, R]):
    """How to run the tasks of a campaign.

    - `run`: runs a task.
    - `shared`: the key of what a process keeps between tasks, such as a captured trial. Tasks with
      one key go to one process if possible.
    - `own`: a finer key, for what only some of these tasks share. None means `shared`.
    - `seconds`: the time limit of a task, after which it counts as hung.
    - `label`: the name of a task in messages.
    """

    run: Callable[[T], R]
    shared: Callable[[T], Hashable]
    seconds: Callable[[T], float]
    own: Callable[[T], Hashable] | None = None
    label: Callable[[T], str] = str


@dataclass(frozen=True)
class Ended(Generic[T, R]):
    """The end of a task: a result, or an error as a traceback without absolute paths."""

    task: T
    seconds: float
    result: R | None = None
    error: str | None = None


def outcome_of(run: Callable[[T], R], task: T) -> tuple[R | None, str | None]:
    """Return the result of a task, or the traceback of its error."""
    try:
        return run(task), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, traceback_of(error)


def _serve(pipe: connection.Connection, run: Callable[[Any], Any]) -> None:
    """Run the tasks that come through a pipe, and send back their outcomes."""
    with suppress(EOFError, BrokenPipeError):  # The parent process is gone.
        while True:
            task = pipe.recv()
            result, error = outcome_of(run, task)
            try:
                pipe.send((result, error))
            except Exception as unsendable:
                pipe.send((None, traceback_of(unsendable)))


class _Worker(Generic[T, R]):
    """A worker process that runs one task at a time. It ignores Ctrl-C."""

    task: T

    def __init__(self, campaign: Campaign[T, R], gpu: str | None) -> None:
        variables = {**os.environ, **({} if gpu is None else {VISIBLE: gpu})}
        self.process = Forked(_serve, campaign.run, variables=variables)
        self.pipe = self.process.pipe
        self.busy = False
        self.usable = True
        self.started = self.deadline = 0.0

    @property
    def gone(self) -> bool:
        """Whether the idle process has ended. An idle process sends nothing else."""
        return self.pipe.poll() or not self.process.is_alive()

    def give(self, task: T, seconds: float) -> None:
        """Send the process a task, with a time limit in seconds."""
        self.task, self.busy = task, True
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        with suppress(OSError):  # It has just died; `collect` reports it.
            self.pipe.send(task)

    def collect(self) -> Ended[T, R]:
        """Return the end of the task. The process has answered, has died or is overdue."""
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
        """Kill the process."""
        self.process.kill()
        self.pipe.close()  # By which it ends, too, if it is forked only later.
        self.process.join(JOIN_SECONDS)


class Waiting(Generic[T, R]):
    """The tasks that have not started, in order."""

    def __init__(self, campaign: Campaign[T, R], tasks: Iterable[T]) -> None:
        self.shared, self.own = campaign.shared, campaign.own or campaign.shared
        self.tasks = [self._keyed(task) for task in tasks]

    def __bool__(self) -> bool:
        return bool(self.tasks)

    def take(self, last: T | None, running: Sequence[T]) -> T:
        """Take the task for which a process that last ran `last` has to build the least.

        In order of preference:

        1. the same `shared` and `own` as the last task;
        2. the same `shared`, with an `own` that no running task has;
        3. a `shared` that no running task has;
        4. an `own` that no running task has, from the group with the most waiting tasks per
           process that works on it.
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
        """Put a task back, before all others."""
        self.tasks.insert(0, self._keyed(task))

    def _keyed(self, task: T) -> tuple[Hashable, Hashable, T]:
        """Return the `shared` key and the `own` key of a task, and the task."""
        return self.shared(task), self.own(task), task

    def _first(self, fits: Callable[[Hashable, Hashable], bool]) -> int | None:
        """Return the place of the first task whose keys satisfy `fits`, or None."""
        keys = enumerate(self.tasks)
        return next((place for place, (group, own, _) in keys if fits(group, own)), None)


def _hand_out(
    campaign: Campaign[T, R],
    workers: list[_Worker[T, R] | None],
    waiting: Waiting[T, R],
    pin: Callable[[int], str | None],
) -> None:
    """Give each idle process a task while there are tasks. Start missing processes."""
    for place, worker in enumerate(workers):
        if not waiting or (worker is not None and worker.busy):
            continue
        running = [other.task for other in workers if other is not None and other.busy]
        task = waiting.take(worker.task if worker is not None else None, running)
        if worker is None or worker.gone:
            worker = workers[place] = _Worker(campaign, pin(place))  # noqa: PLW2901
        worker.give(task, campaign.seconds(task))


def _ready(busy: Sequence[_Worker[T, R]]) -> list[_Worker[T, R]]:
    """Wait for processes, and return those that have answered, have died or are overdue."""
    soonest = min(worker.deadline for worker in busy)
    answered = connection.wait(
        [worker.pipe for worker in busy], max(0.0, soonest - time.monotonic())
    )
    now = time.monotonic()
    return [worker for worker in busy if worker.pipe in answered or worker.deadline <= now]


class _TooLongError(BaseException):
    """A task in this process took too long. Not an Exception, so that no handler catches it."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise _TooLongError after some seconds. It needs the main thread, which gets the signal."""
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
    """Run all tasks in the processes of `workers`, or in this process if there are none.

    `on_end` is called with the end of each task. A task ends with an error if it raises, takes too
    long, or its process dies. Such a process is replaced. Without workers, a hang outside Python
    or the death of the process cannot be handled. All processes end on Ctrl-C, and when this
    process ends.

    Under MPS, a task can spoil the processes of others. A task whose process was spoiled is run
    again alone, and the second end counts.
    """
    again_under_mps(_spread, campaign, tasks, workers, on_end)


def again_under_mps(
    spread: Callable[[Campaign[T, R], Iterable[T], Workers, Callable[[Ended[T, R]], None]], None],
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    workers: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run all tasks with `spread`. Under MPS, rerun alone those whose process was spoiled.

    `workers.again` records the tasks that were rerun.
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
    """Return in one line why the process of a task was spoiled."""
    error = ended.error or getattr(ended.result, "error", None)
    return headline(error) if error else "its process lost the device"


def _spread(
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    spread_over: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run all tasks in worker processes, then end the processes."""
    waiting = Waiting(campaign, tasks)
    if spread_over.processes == 0:
        last = None
        while waiting:
            last = waiting.take(last, ())
            on_end(_run_here(campaign, last))
        return
    workers: list[_Worker[T, R] | None] = [None] * spread_over.processes
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
