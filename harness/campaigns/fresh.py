"""Plays schedules in a fresh process, which has captured a trial and played nothing else.

The process captures what the schedules need, as in the hunt, or everything. It is forked from the
fork server, which has used no device. On a CPU it stays, and each playing is a fork of it. CUDA
does not survive a fork, so on a GPU the process plays once and ends.
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

ON_DEVICE = {"cuda": KERNELS}
"""Modules that the fork server imports in addition for a device."""

ONE_CONNECTION = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""Environment variables with which a process initialises CUDA faster.

The driver initialises processes one after the other, and each connection takes long. Only parallel
streams need more than one.
"""

DIED = "a fresh process died"

Build = Callable[[TrialConfig, Collection[str]], Lockstep]
"""A module-level function that builds the lockstep of a trial with some properties."""


@dataclass(frozen=True)
class FreshPlaying:
    """Schedules for a fresh process to play in turn. The outcome of the last one counts.

    Only `properties` are checked. The play ends with the first violation of a property in `until`.
    With `captures_all`, all runners are captured first.
    """

    trial: TrialConfig
    properties: frozenset[str]
    until: frozenset[str]
    schedules: tuple[Schedule, ...]
    captures_all: bool = False


PlayFresh = Callable[[FreshPlaying], Outcome]
"""Plays in a fresh process. Raises PlayingFailedError if the process returns no outcome."""

BeginFresh = Callable[[TrialConfig, frozenset[str]], None]
"""Starts the process for a later playing of a trial with some properties."""


def built(trial: TrialConfig, properties: Collection[str]) -> Lockstep:
    """Return a new lockstep. It has no fresh engine unless a property needs it."""
    needs_both = any(PROPERTIES[name].extra_run for name in properties)
    return Lockstep(trial, properties, engines=None if needs_both else subject_alone)


def begin_fresh(trial: TrialConfig, properties: frozenset[str], build: Build = built) -> None:
    """Start the process for a later playing. It initialises its device and captures meanwhile."""
    _captured(build, trial, properties, captures_all=False)


def play_fresh(playing: FreshPlaying, build: Build = built) -> Outcome:
    """Play in a fresh process. Raises PlayingFailedError if it returns no outcome."""
    trial, properties = playing.trial, playing.properties
    process = _captured(build, trial, properties, captures_all=playing.captures_all)
    try:
        return process.play(playing)
    finally:
        if not process.usable:
            _captured.cache_clear()
            process.end()


class _Captured:
    """A process that has captured a trial. On a CPU it plays in forks of itself.

    It captures further runners that the schedules need before it forks.
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
        with suppress(OSError):  # It has ended, and may have sent a reason.
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

    def end(self) -> None:
        """End the process."""
        self.pipe.close()


_captured = lru_cache(maxsize=1)(_Captured)
"""The process of the last trial. It ends when its pipe is closed."""


def _serve(
    pipe: Connection,
    build: Build,
    trial: TrialConfig,
    properties: frozenset[str],
    captures_all: bool,
    lasts: bool,
) -> None:
    """Capture a trial, then play what comes through the pipe until it is closed."""
    gc.disable()  # Captured objects stay, and the forks that play end.
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
                end_with_asker(pipe)  # A fork has no threads of its parent.
                pipe.send(_outcome(lockstep, playing))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if status:
                pipe.send(DIED)


def _outcome(lockstep: Lockstep, playing: FreshPlaying) -> Outcome | str:
    """Return the outcome of the last schedule, or the traceback of an error outside the play."""
    *history, last = playing.schedules
    try:
        for schedule in history:
            lockstep.play(schedule, until=playing.until)
        return lockstep.play(last, until=playing.until)
    except DeviceLostError as lost:
        return lost.outcome
    except Exception as error:
        return traceback_of(error)
