"""Playing a schedule in a fresh process: one that has captured its trial and played nothing.

Such a process is forked from a server that has imported what it needs and has touched no
device. On a CPU it stays, and each playing is a fork of it; on CUDA, which no fork survives,
it plays once and ends.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path

from harness.campaigns.executor import end_with_parent, undisturbed
from harness.campaigns.hunt import PlayingFailedError, time_limit
from harness.checks.play import DeviceLostError, Lockstep, Outcome
from harness.checks.table import PROPERTIES
from harness.lockstep.config import TrialConfig
from harness.lockstep.pair import subject_alone
from harness.lockstep.tracebacks import traceback_of
from harness.schedules.schedule import Schedule
from subjects.protocol import Offer

ROOT = Path(__file__).parents[2]

KERNELS = (
    "reference.triton_ops",
    "harness.lockstep.scale.kernel",
    "reference.kernels.known",
    "subjects.listing.device",
)

ON_DEVICE = {"cuda": KERNELS}
"""What the server imports besides, for the processes that play on a device."""

DIED = "a fresh process died"

Build = Callable[[TrialConfig, Collection[str]], Lockstep]
"""Builds the lockstep of a trial that is judged by some properties: a function of a module."""


@dataclass(frozen=True)
class FreshPlaying:
    """What a fresh process plays: schedules in turn, of which the last one's outcome counts.

    It is judged by `properties` alone, and ends with the first violation of one of `until`.
    """

    trial: TrialConfig
    properties: frozenset[str]
    until: frozenset[str]
    schedules: tuple[Schedule, ...]


PlayFresh = Callable[[FreshPlaying], Outcome]
"""Plays in a fresh process; raises PlayingFailedError if that process gives no outcome."""


def built(trial: TrialConfig, properties: Collection[str]) -> Lockstep:
    """Return a new lockstep, without a fresh engine where no property asks for one."""
    needs_both = any(Offer.FRESH_ENGINE in PROPERTIES[name].needs for name in properties)
    return Lockstep(trial, properties, engines=None if needs_both else subject_alone)


def play_fresh(playing: FreshPlaying, build: Build = built) -> Outcome:
    """Play in a fresh process. Raises PlayingFailedError if it gives no outcome."""
    process = _captured(build, playing.trial, playing.properties)
    try:
        return process.play(playing)
    finally:
        if not process.usable:
            _captured.cache_clear()


class _Captured:
    """A process that has captured a trial and plays nothing but in forks of it, if it can."""

    def __init__(self, build: Build, trial: TrialConfig, properties: frozenset[str]) -> None:
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        self.usable = True
        self.lasts = trial.device == "cpu"
        words = theirs, build, trial, properties, self.lasts
        _start_server(trial.device)
        with undisturbed():
            context.Process(target=_serve, args=words, daemon=True).start()
        theirs.close()

    def play(self, playing: FreshPlaying) -> Outcome:
        """Return the outcome of the last schedule."""
        self.usable = False
        allowed = time_limit(len(playing.schedules))
        try:
            self.pipe.send(playing)
            if not self.pipe.poll(allowed):
                raise PlayingFailedError(f"a fresh process took more than {allowed:.0f} s")
            outcome: Outcome | str = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise PlayingFailedError(DIED) from error
        if isinstance(outcome, str):
            raise PlayingFailedError(outcome)
        self.usable = self.lasts
        return outcome


_captured = lru_cache(maxsize=1)(_Captured)
"""The last trial that was captured so. A process whose pipe is closed here ends by itself."""


def _start_server(device: str) -> None:
    """Start the server that fresh processes are forked from, if it does not run yet.

    It must import this tree, whatever the folder that it is started in holds.
    """
    forkserver.set_forkserver_preload([__name__, *ON_DEVICE.get(device, ())])
    # Starting it, the first process would let SIGINT through again.
    resource_tracker.ensure_running()
    before = dict(os.environ)
    os.environ.update(PYTHONPATH=str(ROOT), PYTHONSAFEPATH="1")
    try:
        with undisturbed():
            forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _serve(
    pipe: connection.Connection,
    build: Build,
    trial: TrialConfig,
    properties: frozenset[str],
    lasts: bool,
) -> None:
    """Capture a trial, then play what comes through the pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    with suppress(EOFError, BrokenPipeError):
        try:
            lockstep = build(trial, properties)
        except Exception as error:
            pipe.send(traceback_of(error))
            return
        while True:
            playing = pipe.recv()
            if not lasts:
                pipe.send(_outcome(lockstep, playing))
                return
            child = os.fork()
            if child == 0:
                end_with_parent()  # No thread of a process is in a fork of it.
                pipe.send(_outcome(lockstep, playing))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if status:
                pipe.send(DIED)


def _outcome(lockstep: Lockstep, playing: FreshPlaying) -> Outcome | str:
    """Return the outcome of the last schedule, or the traceback of an error outside a playing."""
    *history, last = playing.schedules
    try:
        for schedule in history:
            lockstep.play(schedule, until=playing.until)
        return lockstep.play(last, until=playing.until)
    except DeviceLostError as lost:
        return lost.outcome
    except Exception as error:
        return traceback_of(error)
