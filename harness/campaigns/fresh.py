"""Playing a schedule in a fresh process: one that has captured its trial and played nothing.

It captures what its schedules need, as whoever hunted did, or everything where it is asked to.
Such a process is forked from the server that all are forked from, which has touched no device.
On a CPU it stays, and each playing is a fork of it; on CUDA, which no fork survives, it plays
once and ends.
"""

import gc
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection

from paritybit.harness.campaigns.hunt import PlayingFailedError, time_limit
from paritybit.harness.checks.play import DeviceLostError, Lockstep, Outcome
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import subject_alone
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.machine.forks import KERNELS, Forked, end_with_asker, preload
from paritybit.harness.schedules.schedule import Schedule
from paritybit.subjects.protocol import Offer

ON_DEVICE = {"cuda": KERNELS}
"""What the server imports besides, for the processes that play on a device."""

ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""What lets a process begin CUDA sooner, unless its environment says otherwise.

A driver begins processes one after the other, and takes long for the connections of each: more
than one are for streams that run beside each other.
"""

END_SECONDS = 60.0
"""How long a process may take to end: a driver frees tens of GiB in a few seconds."""

DIED = "a fresh process died"

Build = Callable[[TrialConfig, Collection[str]], Lockstep]
"""Builds the lockstep of a trial that is judged by some properties: a function of a module."""


@dataclass(frozen=True)
class FreshPlaying:
    """What a fresh process plays: schedules in turn, of which the last one's outcome counts.

    It is judged by `properties` alone, and ends with the first violation of one of `until`. With
    `captures_all` every runner is captured before, whatever the schedules need.
    """

    trial: TrialConfig
    properties: frozenset[str]
    until: frozenset[str]
    schedules: tuple[Schedule, ...]
    captures_all: bool = False


PlayFresh = Callable[[FreshPlaying], Outcome]
"""Plays in a fresh process; raises PlayingFailedError if that process gives no outcome."""

BeginFresh = Callable[[TrialConfig, frozenset[str]], None]
"""Starts the process for a playing of a trial, judged by some properties, that is to come."""


def built(trial: TrialConfig, properties: Collection[str]) -> Lockstep:
    """Return a new lockstep, without a fresh engine where no property asks for one.

    Nor is kept, where none asks for it, what the engines hold when they are just captured.
    """
    asked = [PROPERTIES[name] for name in properties]
    needs_both = any(Offer.FRESH_ENGINE in rule.needs for rule in asked)
    return Lockstep(
        trial,
        properties,
        engines=None if needs_both else subject_alone,
        keeps_state=any(rule.after_reset for rule in asked),
    )


def begin_fresh(trial: TrialConfig, properties: frozenset[str], build: Build = built) -> None:
    """Start the process for a playing to come, which begins its device and builds meanwhile."""
    _captured(build, trial, properties, captures_all=False)


def play_fresh(playing: FreshPlaying, build: Build = built) -> Outcome:
    """Play in a fresh process. Raises PlayingFailedError if it gives no outcome."""
    trial, properties = playing.trial, playing.properties
    process = _captured(build, trial, properties, captures_all=playing.captures_all)
    try:
        return process.play(playing)
    finally:
        if not process.usable:
            _captured.cache_clear()
            process.end(wait=trial.large)


class _Captured:
    """A process that has captured a trial. It plays in forks of itself, where its device lets it.

    What the schedules of a playing need captured in addition, it captures before that fork.
    """

    def __init__(
        self, build: Build, trial: TrialConfig, properties: frozenset[str], *, captures_all: bool
    ) -> None:
        self.usable = True
        self.lasts = trial.device == "cpu"
        preload([__name__, *ON_DEVICE.get(trial.device, ())])
        words = build, trial, properties, captures_all, self.lasts
        variables = os.environ if trial.overlap else {**ONE_CONNECTION, **os.environ}
        self.process = Forked(_serve, *words, variables=variables)
        self.pipe = self.process.pipe

    def play(self, playing: FreshPlaying) -> Outcome:
        """Return the outcome of the last schedule."""
        self.usable = False
        allowed = time_limit(len(playing.schedules))
        with suppress(OSError):  # It has ended, and may have said why.
            self.pipe.send(playing)
        try:
            if not self.pipe.poll(allowed):
                raise PlayingFailedError(f"a fresh process took more than {allowed:.0f} s")
            outcome: Outcome | str = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise PlayingFailedError(DIED) from error
        if isinstance(outcome, str):
            raise PlayingFailedError(outcome)
        self.usable = self.lasts
        return outcome

    def end(self, *, wait: bool) -> None:
        """End the process; if asked to, wait until it holds no memory of its device any more."""
        self.pipe.close()
        if wait:
            self.process.join(END_SECONDS)


_captured = lru_cache(maxsize=1)(_Captured)
"""The last trial that was captured so. A process whose pipe is closed here ends by itself."""


def _serve(
    pipe: Connection,
    build: Build,
    trial: TrialConfig,
    properties: frozenset[str],
    captures_all: bool,
    lasts: bool,
) -> None:
    """Capture a trial, then play what comes through the pipe until it is closed."""
    gc.disable()  # What is captured here stays, and what plays ends.
    with suppress(EOFError, BrokenPipeError):
        try:
            lockstep = build(trial, properties)
            if captures_all:
                lockstep.pair.capture(lockstep.pair.modes)
        except Exception as error:
            pipe.send(traceback_of(error))
            return
        while True:
            playing = pipe.recv()
            try:
                for schedule in playing.schedules:
                    lockstep.capture(schedule)
            except Exception as error:
                pipe.send(traceback_of(error))
                return
            if not lasts:
                pipe.send(_outcome(lockstep, playing))
                return
            child = os.fork()
            if child == 0:
                end_with_asker(pipe)  # No thread of a process is in a fork of it.
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
