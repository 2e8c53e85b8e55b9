"""Plays schedules in a fresh process, which has captured a trial and played nothing else.

The process captures what the schedules need, as in the hunt, or everything. It is forked from
multiprocessing's fork server, which has imported all modules and used no device. On a CPU it stays,
and each playing is a fork of it. CUDA does not survive a fork, so on a GPU the process plays once
and ends.
"""

import gc
import os
import signal
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import TypeVar

from paritybit.harness.campaigns.hunt import PlayingFailedError, time_limit
from paritybit.harness.checks.play import DeviceLostError, Lockstep, Outcome
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.pair import subject_alone
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.machine.gpus import visible_gpus
from paritybit.harness.schedules.schedule import Schedule

ONE_CONNECTION = "CUDA_DEVICE_MAX_CONNECTIONS"
"""The environment variable for the number of connections to a GPU.

With one, a process initialises CUDA faster. Only parallel streams need more.
"""

KERNELS = ("paritybit.reference.cuda_ops",)
"""Further modules for processes that use a GPU."""

DIED = "a fresh process died"

Given = TypeVar("Given")
Got = TypeVar("Got")


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


@cache
def fork_server() -> ForkServerContext:
    """Return the context in which a process is forked from a server with all modules imported."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, *(KERNELS if visible_gpus() else ())])
    return context


def in_new_process(run: Callable[[Given], Got], given: Given) -> Got:
    """Return what `run` returns in a new process. Raises BrokenProcessPool if it dies."""
    with ProcessPoolExecutor(1, mp_context=fork_server()) as pool:
        return pool.submit(run, given).result()


def begin_fresh(trial: TrialConfig, properties: frozenset[str]) -> None:
    """Start the process for a later playing. It initialises its device and captures meanwhile."""
    _captured(trial, properties, captures_all=False)


def play_fresh(playing: FreshPlaying) -> Outcome:
    """Play in a fresh process. Raises PlayingFailedError if it returns no outcome."""
    process = _captured(playing.trial, playing.properties, captures_all=playing.captures_all)
    try:
        return process.play(playing)
    finally:
        if not process.usable:
            _captured.cache_clear()
            process.pipe.close()


class _Captured:
    """A process that has captured a trial. On a CPU it plays in forks of itself.

    It captures further runners that the schedules need before it forks. It ends when `pipe` is
    closed.
    """

    def __init__(
        self, trial: TrialConfig, properties: frozenset[str], *, captures_all: bool
    ) -> None:
        self.usable = True
        self.lasts = trial.device == "cpu"
        self.pipe, theirs = fork_server().Pipe()
        with theirs:
            words = theirs, trial, properties, captures_all, self.lasts
            fork_server().Process(target=_serve, args=words, daemon=True).start()

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


_captured = lru_cache(maxsize=1)(_Captured)
"""The process of the last trial."""


def _serve(
    pipe: Connection,
    trial: TrialConfig,
    properties: Collection[str],
    captures_all: bool,
    lasts: bool,
) -> None:
    """Capture a trial, then play what comes through the pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not trial.overlap:
        os.environ.setdefault(ONE_CONNECTION, "1")
    gc.disable()  # Captured objects stay, and the forks that play end.
    with suppress(EOFError, BrokenPipeError):
        try:
            needs_both = any(PROPERTIES[name].extra_run for name in properties)
            lockstep = Lockstep(trial, properties, engines=None if needs_both else subject_alone)
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
                signal.alarm(int(time_limit(len(playing.schedules))))  # No one else would end it.
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
