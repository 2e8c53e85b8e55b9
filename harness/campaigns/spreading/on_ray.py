"""The second backend of the executor: tasks run in actors of a Ray cluster.

An actor keeps what its tasks share, as a worker process does. If an actor dies, its task goes to
another one. Ray pins an actor to its GPU before it imports paritybit. The packages of this build
are sent to the nodes.
"""

import importlib
import re
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

from paritybit.harness.campaigns.executor import (
    Campaign,
    Ended,
    Reported,
    Waiting,
    again_under_mps,
    alarm,
    outcome_of,
)
from paritybit.harness.errors import CannotRunError, headline
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.machine.workers import LOCAL, SHARING_PLAINLY, SHARING_UNDER_MPS, Workers

from paritybit.places import PACKAGE, SOURCES

T = TypeVar("T")
R = TypeVar("R", bound=Reported)

SENT = ("harness", "reference", "subjects")
"""The packages of `paritybit` that tasks need."""

TRIES = 3
"""The number of attempts for a task. If its process dies each time, the task is the reason."""

GRACE = 60.0
"""Seconds between the time limit of a task and the kill of its process."""

SILENT_SECONDS = 30.0
"""Seconds that the head of a cluster may be silent. After 60 s Ray exits this process with 1."""

READY_SECONDS = 600.0
"""Seconds to wait for a first actor before the cluster counts as full."""


class Carrier:
    """The actor. It runs one task at a time in a process of the cluster."""

    def __init__(self, run: Callable[[Any], Any]) -> None:
        self.run = run

    def ready(self) -> None:
        """Do nothing. A caller can wait for the process with it."""

    def carry_out(self, task: Any, seconds: float) -> tuple[Any, str | None]:
        """Return the result of a task, or the traceback of its error or timeout."""

        def run(task: Any) -> Any:
            with alarm(seconds):
                return self.run(task)

        return outcome_of(run, task)


class _Place(Generic[T, R]):
    """An actor, and the pending answer: that it has started, or the end of its task."""

    task: T | None = None

    def __init__(self, ray: Any, campaign: Campaign[T, R], gpu: float) -> None:
        kind = ray.remote(Carrier).options(num_cpus=1, num_gpus=gpu, max_restarts=0)
        self.ray, self.campaign = ray, campaign
        self.actor = kind.remote(campaign.run)
        self.awaited = self.actor.ready.remote()
        self.there = self.busy = False
        self.started = 0.0

    def give(self, task: T) -> None:
        """Send the actor a task."""
        seconds = self.campaign.seconds(task)
        self.task, self.busy, self.started = task, True, time.monotonic()
        self.deadline = self.started + seconds + GRACE
        self.awaited = self.actor.carry_out.remote(task, seconds)

    @property
    def overdue(self) -> bool:
        """Whether the task is far beyond its time limit."""
        return self.busy and time.monotonic() > self.deadline

    def collect(self) -> Ended[T, R] | None:
        """Return the end of the pending task, or None if the process is gone."""
        assert self.task is not None
        seconds = time.monotonic() - self.started
        self.busy = False
        if time.monotonic() > self.deadline:
            allowed = self.campaign.seconds(self.task)
            return Ended(self.task, seconds, error=f"it took more than {allowed:.0f} s")
        try:
            result, error = self.ray.get(self.awaited)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.NodeDiedError):
            return None
        except Exception as unreadable:
            result, error = None, traceback_of(unreadable)
        return Ended(self.task, seconds, result, error)

    def end(self) -> None:
        """Kill the actor."""
        self.ray.kill(self.actor)


def answers(head: str) -> bool:
    """Whether the head of a cluster accepts connections at an address, HOST:PORT."""
    host, _, port = head.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
            return True
    except OSError:
        return False


def package_to_send(scratch: Path) -> Path:
    """Return the installed folder of `paritybit`. A checkout is copied to `scratch`."""
    if SOURCES == PACKAGE:
        return PACKAGE
    copied = scratch / PACKAGE.name
    for source, target in ((PACKAGE, copied), *((SOURCES / name, copied / name) for name in SENT)):
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    return copied


@contextmanager
def joined(workers: Workers) -> Iterator[Any]:
    """Connect to the requested cluster, or start one on this machine. Disconnect at the end.

    Raises CannotRunError if Ray is missing or no cluster answers.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise CannotRunError("--ray needs the package Ray: pip install 'paritybit[ray]'") from error
    address = workers.cluster or LOCAL
    own = address == LOCAL
    there = re.fullmatch(r"(?:\w+://)?(.+:\d+)", address)
    if there and not answers(there[1]):  # Ray itself would retry for minutes.
        raise CannotRunError(f"no Ray cluster answers at {address}: nothing is listening there")
    size = {"num_cpus": workers.processes, "include_dashboard": False} if own else {}
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with TemporaryDirectory(prefix="paritybit-") as scratch:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"py_modules": [str(package_to_send(Path(scratch)))]},
                **size,
            )
    except Exception as error:
        why = headline(str(error))
        token = "" if own else "; if the cluster needs a token, set RAY_AUTH_MODE=token"
        raise CannotRunError(f"no Ray cluster answers at {address}: {why}{token}") from error
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def execute_on_ray(
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    workers: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run all tasks on the cluster of `workers`. `on_end` is called with each end.

    A task whose process dies goes to another process; after TRIES deaths it ends with an error.
    MPS is handled as in `executor.execute`. Raises CannotRunError as `joined` does, and if the
    cluster has no room for any actor.
    """
    again_under_mps(_spread, campaign, tasks, workers, on_end)


def _spread(
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    workers: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run all tasks with one actor per process, then disconnect from the cluster."""
    waiting = Waiting(campaign, tasks)
    sharing = SHARING_UNDER_MPS if workers.mps else SHARING_PLAINLY
    gpu = 1 / sharing if workers.gpus else 0.0
    lost = 0
    while waiting:
        if lost == TRIES:
            raise CannotRunError(f"the local Ray cluster was lost {TRIES} times")
        with joined(workers) as ray:
            _Spread(ray, campaign, waiting, gpu, on_end, workers).run(workers.processes)
        lost += 1


class _Spread(Generic[T, R]):
    """A campaign that runs on a cluster."""

    def __init__(
        self,
        ray: Any,
        campaign: Campaign[T, R],
        waiting: Waiting[T, R],
        gpu: float,
        on_end: Callable[[Ended[T, R]], None],
        workers: Workers,
    ) -> None:
        self.ray, self.campaign, self.waiting, self.gpu = ray, campaign, waiting, gpu
        self.on_end, self.again, self.own = on_end, workers.again, workers.cluster == LOCAL
        by_proxy = workers.cluster is not None and workers.cluster.startswith("ray://")
        self.head = None if by_proxy else ray.get_runtime_context().gcs_address
        self.heard = time.monotonic()
        self.deaths: Counter[T] = Counter()
        self.failed_starts = 0

    def run(self, count: int) -> None:
        """Run the waiting tasks in at most `count` actors.

        If a cluster that this run has started is lost, this returns, and all tasks that have not
        ended are in `waiting` again.
        """
        places: list[_Place[T, R] | None] = [None] * count
        last_there = time.monotonic()
        while True:
            if self._lost():
                for place in places:
                    if place and place.busy and place.task is not None:
                        self._run_again(place.task, "the process lost its cluster")
                return
            self._hand_out(places)
            awaited = [place for place in places if place and (place.busy or not place.there)]
            if not self.waiting and not any(place.busy for place in awaited):
                return
            ended = self._ended(awaited)
            for place in ended:
                if not self._settled(place):
                    place.end()
                    places[places.index(place)] = None
            if ended or any(place.there for place in awaited):
                last_there = time.monotonic()
            elif time.monotonic() - last_there > READY_SECONDS:
                raise CannotRunError("the Ray cluster had no room to start a process")

    def _lost(self) -> bool:
        """Whether a cluster that this run has started lost its head or its only node.

        In any other cluster nodes may come and go. If its head is silent for too long, this raises
        CannotRunError.
        """
        if self.head is None or answers(self.head):
            self.heard = time.monotonic()
            return self.own and not any(node["Alive"] for node in self.ray.nodes())
        if not self.own and time.monotonic() - self.heard > SILENT_SECONDS:
            raise CannotRunError("the Ray cluster no longer answers")
        return self.own

    def _hand_out(self, places: list[_Place[T, R] | None]) -> None:
        """Give each idle actor a task while there are tasks. Start missing actors."""
        for index, place in enumerate(places):
            if not self.waiting:
                return
            if place is None:
                places[index] = _Place(self.ray, self.campaign, self.gpu)
            elif place.there and not place.busy:
                running = [other.task for other in places if other and other.busy and other.task]
                place.give(self.waiting.take(place.task, running))

    def _run_again(self, task: T, why: str) -> None:
        """Put back a task that did not end. Record the first reason for each task."""
        self.waiting.put_back(task)
        noted = self.campaign.label(task), why
        if noted not in self.again:
            self.again.append(noted)

    def _ended(self, awaited: Sequence[_Place[T, R]]) -> list[_Place[T, R]]:
        """Wait briefly, and return actors that have started, answered, died or are overdue."""
        answered, _ = self.ray.wait([place.awaited for place in awaited], timeout=1.0)
        return [place for place in awaited if place.awaited in answered or place.overdue]

    def _settled(self, place: _Place[T, R]) -> bool:
        """Process the answer of an actor. Returns whether the actor is still usable."""
        if not place.busy:
            try:
                self.ray.get(place.awaited)
            except self.ray.exceptions.RayError as error:
                self.failed_starts += 1
                if self.failed_starts == TRIES:
                    why = headline(str(error))
                    raise CannotRunError(f"the cluster cannot start a process: {why}") from error
                return False
            place.there, self.failed_starts = True, 0
            return True
        ended = place.collect()
        task = place.task
        assert task is not None
        if ended is None:
            self.deaths[task] += 1
            if self.deaths[task] < TRIES:
                self._run_again(task, "the process died")
                return False
            ended = Ended(task, 0.0, error=f"the process died {TRIES} times")
        self.on_end(ended)
        return ended.result is not None and not ended.result.spoiled
