"""Runs work in fresh processes.

They are forked from multiprocessing's fork server, which has imported all modules and used no
device.
"""

import gc
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import TypeVar

from paritybit.harness.campaigns.search import PlayingFailedError
from paritybit.harness.checks.play import DeviceLostError, Outcome, SchedulePlayer
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.machine.gpus import visible_gpus
from paritybit.harness.schedules.schedule import Schedule

Given = TypeVar("Given")
Got = TypeVar("Got")


@cache
def fork_server() -> ForkServerContext:
    """Return the context in which a process is forked from a server with all modules imported."""
    context = get_context("forkserver")
    kernels = ["paritybit.reference.cuda_ops"] if visible_gpus() else []
    context.set_forkserver_preload([__name__, *kernels])
    return context


def in_new_process(run: Callable[[Given], Got], given: Given) -> Got:
    """Return what `run` returns in a new process. Raises BrokenProcessPool if it dies."""
    with ProcessPoolExecutor(1, mp_context=fork_server()) as pool:
        return pool.submit(run, given).result()


@dataclass(frozen=True)
class FreshPlaying:
    """A schedule for a fresh process to play.

    Only `properties` are checked. The play ends with the first violation of a property in `until`.
    """

    trial: TrialConfig
    properties: frozenset[str]
    until: frozenset[str]
    schedule: Schedule


def begin_fresh(trial: TrialConfig, properties: frozenset[str]) -> None:
    """Start the process for a later playing. It initialises its device and captures meanwhile."""
    _started(trial, properties)


def play_fresh(playing: FreshPlaying) -> Outcome:
    """Play in a fresh process. Raises PlayingFailedError if it returns no outcome."""
    pipe = _started(playing.trial, playing.properties)
    _started.cache_clear()
    with pipe:
        with suppress(OSError):  # It has ended, and may have sent a reason.
            pipe.send(playing)
        try:
            outcome: Outcome | str = pipe.recv()
        except (EOFError, OSError) as error:
            raise PlayingFailedError("a fresh process died") from error
    if isinstance(outcome, str):
        raise PlayingFailedError(outcome)
    return outcome


@lru_cache(maxsize=1)
def _started(trial: TrialConfig, properties: frozenset[str]) -> Connection:
    """Start a process that captures a trial. Returns its pipe. It ends when that is closed."""
    pipe, theirs = fork_server().Pipe()
    with theirs:
        given = theirs, trial, properties
        fork_server().Process(target=_serve, args=given, daemon=True).start()
    return pipe


def _serve(pipe: Connection, trial: TrialConfig, properties: frozenset[str]) -> None:
    """Capture a trial, play what comes through the pipe, and send the outcome or a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not trial.overlap:
        # With one connection to a GPU, CUDA starts faster. Only parallel streams need more.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    gc.disable()  # Captured objects stay until the process ends.
    with suppress(BrokenPipeError):
        try:
            needs_both = any(PROPERTIES[name].extra_run for name in properties)
            player = SchedulePlayer(trial, properties, alone=not needs_both)
            playing: FreshPlaying = pipe.recv()
            pipe.send(player.play(playing.schedule, until=playing.until))
        except DeviceLostError as lost:
            pipe.send(lost.outcome)
        except Exception as error:
            pipe.send(traceback_of(error))
