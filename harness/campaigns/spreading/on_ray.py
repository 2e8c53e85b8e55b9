"""The executor's second backend: tasks on a Ray cluster, each in an actor's process.

An actor keeps what its tasks share, as a worker process here does. One that dies, alone or with
its node, costs nothing: its task is given to another. Ray pins an actor to its GPU before
anything of ours is imported in it. This build's packages are sent to the nodes.
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
"""The packages of `paritybit` that carry tasks out."""

TRIES = 3
"""So often is a task given out: what ends the process of each is the task's own doing."""

GRACE = 60.0
"""Seconds that a task's process has to end it once its time is over, before it is killed."""

SILENT_SECONDS = 30.0
"""How long the head of a cluster may be silent. After 60 s Ray ends this process, with code 1."""

READY_SECONDS = 600.0
"""How long no actor may be there, before the cluster is taken for one that has no room."""


class Carrier:
    """What runs tasks, one at a time, in a process of the cluster."""

    def __init__(self, run: Callable[[Any], Any]) -> None:
        self.run = run

    def ready(self) -> None:
        """Do nothing: who calls this waits until the process is there."""

    def carry_out(self, task: Any, seconds: float) -> tuple[Any, str | None]:
        """Return what a task gives, or the traceback of what it raises or of its time being up."""

        def run(task: Any) -> Any:
            with alarm(seconds):
                return self.run(task)

        return outcome_of(run, task)


class _Place(Generic[T, R]):
    """An actor, and what is awaited of it: that it is there, or how its task ends."""

    task: T | None = None

    def __init__(self, ray: Any, campaign: Campaign[T, R], gpu: float) -> None:
        kind = ray.remote(Carrier).options(num_cpus=1, num_gpus=gpu, max_restarts=0)
        self.ray, self.campaign = ray, campaign
        self.actor = kind.remote(campaign.run)
        self.awaited = self.actor.ready.remote()
        self.there = self.busy = False
        self.started = 0.0

    def give(self, task: T) -> None:
        """Have the actor run a task."""
        seconds = self.campaign.seconds(task)
        self.task, self.busy, self.started = task, True, time.monotonic()
        self.deadline = self.started + seconds + GRACE
        self.awaited = self.actor.carry_out.remote(task, seconds)

    @property
    def overdue(self) -> bool:
        """Whether its task should have ended long ago."""
        return self.busy and time.monotonic() > self.deadline

    def collect(self) -> Ended[T, R] | None:
        """Return how the task ended that is awaited; None if its process is gone."""
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
        """End the actor at once, whatever it does."""
        self.ray.kill(self.actor)


def answers(head: str) -> bool:
    """Whether the head of a cluster takes connections at an address, HOST:PORT."""
    host, _, port = head.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
            return True
    except OSError:
        return False


def package_to_send(scratch: Path) -> Path:
    """Return the folder of `paritybit` as installed; that of a checkout is copied to `scratch`."""
    if SOURCES == PACKAGE:
        return PACKAGE
    copied = scratch / PACKAGE.name
    for source, target in ((PACKAGE, copied), *((SOURCES / name, copied / name) for name in SENT)):
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    return copied


@contextmanager
def joined(workers: Workers) -> Iterator[Any]:
    """Join the cluster asked for, or start one on this machine; leave it at the end.

    Raises CannotRunError where Ray is missing or no cluster answers.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise CannotRunError("--ray needs the package Ray: pip install 'paritybit[ray]'") from error
    address = workers.cluster or LOCAL
    own = address == LOCAL
    there = re.fullmatch(r"(?:\w+://)?(.+:\d+)", address)
    if there and not answers(there[1]):  # Ray itself would try for minutes.
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
    """Run every task on the cluster of `workers`, under MPS as the executor of this machine does.

    Each end is handed on as it comes. A task whose process dies is given to another; at the
    third death it ends with an error. Raises CannotRunError as `joined` does, and where the
    cluster has no room for any actor.
    """
    again_under_mps(_spread, campaign, tasks, workers, on_end)


def _spread(
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    workers: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run every task in as many actors as there are to be processes, and leave the cluster."""
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
    """A campaign as it goes on a cluster."""

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
        """Run what waits, in so many actors at most.

        If a cluster that this run has started is lost, this returns, and each task that had not
        ended is in `waiting` again.
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
        """Whether the cluster is lost, where this run has started it: its head or its one node.

        Of a cluster that was there before, nodes may come and go, but it gets no new head: if its
        head is silent for too long, this raises CannotRunError.
        """
        if self.head is None or answers(self.head):
            self.heard = time.monotonic()
            return self.own and not any(node["Alive"] for node in self.ray.nodes())
        if not self.own and time.monotonic() - self.heard > SILENT_SECONDS:
            raise CannotRunError("the Ray cluster no longer answers")
        return self.own

    def _hand_out(self, places: list[_Place[T, R] | None]) -> None:
        """Give every idle actor a task, while there are tasks; start those that are not there."""
        for index, place in enumerate(places):
            if not self.waiting:
                return
            if place is None:
                places[index] = _Place(self.ray, self.campaign, self.gpu)
            elif place.there and not place.busy:
                running = [other.task for other in places if other and other.busy and other.task]
                place.give(self.waiting.take(place.task, running))

    def _run_again(self, task: T, why: str) -> None:
        """Let a task that did not end wait again; note it with the reason, once for each."""
        self.waiting.put_back(task)
        noted = self.campaign.label(task), why
        if noted not in self.again:
            self.again.append(noted)

    def _ended(self, awaited: Sequence[_Place[T, R]]) -> list[_Place[T, R]]:
        """Wait a while for actors that are there, have answered, have died or are overdue."""
        answered, _ = self.ray.wait([place.awaited for place in awaited], timeout=1.0)
        return [place for place in awaited if place.awaited in answered or place.overdue]

    def _settled(self, place: _Place[T, R]) -> bool:
        """Take note of what an actor answered; return whether it is of use any more."""
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
