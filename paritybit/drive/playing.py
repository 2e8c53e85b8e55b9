"""Starts an engine and serves it requests, as a command line asks. Knows no engine."""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paritybit.drive.company import Plays
from paritybit.drive.directing import Settings, counted, serve, shrink
from paritybit.drive.failures import EngineFailedError, StalledError, judge_failure
from paritybit.drive.legs import LACKING, LackingError
from paritybit.drive.script import Script
from paritybit.watch import journal

MOST_POLLS = 3000
"""How often in a row an engine may ask for requests and serve nobody who waits."""


@dataclass
class Progress:
    """How far an engine has come, and how often it has asked for requests since."""

    forwards: int = 0
    polls: int = 0

    def require(self, forwards: int, waiting: int) -> None:
        """Raise StalledError if so many requests wait and the engine runs no batch."""
        if forwards != self.forwards or not waiting:
            self.forwards, self.polls = forwards, 0
        self.polls += 1
        if self.polls > MOST_POLLS:
            raise StalledError(
                f"{waiting} requests wait, and the engine asked {MOST_POLLS} times for more "
                "without running a batch"
            )


class Engine(Plays, Protocol):
    """An engine in this process."""

    @property
    def forwards(self) -> int:
        """How many batches ran."""

    def start(self, direct: Callable[[Plays], object]) -> None:
        """Start, and call `direct` when it is ready to play. Ends when that has ended.

        Raises EngineFailedError if the engine raises, LackingError for settings that it lacks.
        """


def add_play_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is served, and for how long."""
    parser.add_argument("--seconds", type=float, help="play for this long, then until idle")
    parser.add_argument("--forwards", type=int, help="play for so many forwards, then until idle")
    parser.add_argument("--script", type=Path, help="play this script, with its settings")
    parser.add_argument("--shrink", metavar="KEY", help="shrink the script that has this finding")
    parser.add_argument("--best", type=Path, help="where the smallest script is written")


def run(engine: Engine, served: Settings, script: Script | None, asked: argparse.Namespace) -> int:
    """Start the engine, and serve it as asked; return the exit code."""
    lines = journal.of_process()
    if lines is not None:
        lines.scope(**served.scope())
        lines.write("script", settings=served.scope())
    codes, signals = list[int](), list[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *arguments: signals.append(arguments[0]))

    def direct(ready: Plays) -> None:
        if script is not None and asked.shrink is not None:
            found = shrink(ready, served, script, asked.shrink, asked.best, asked.seconds)
            codes.append(0 if found else 1)
            return
        begun, limits = time.monotonic(), served.limits()
        given = served.requests() if script is None else iter(script.waves)

        def stop() -> bool:
            late = asked.seconds is not None and time.monotonic() - begun >= asked.seconds
            enough = asked.forwards is not None and engine.forwards >= asked.forwards
            return bool(signals) or late or enough

        serve(ready, served, counted(given, limits), stop)
        sys.stderr.write(f"{engine.forwards} forwards in {time.monotonic() - begun:.1f} s\n")

    try:
        engine.start(direct)
    except LackingError as error:
        sys.stderr.write(f"{error}\n")
        return LACKING
    except EngineFailedError as error:
        judge_failure(error)
        sys.stderr.write(f"{error}\n")
        return 1
    return max(codes, default=0)
