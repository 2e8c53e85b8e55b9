"""Starts an engine and serves requests, as a command line specifies. Independent of the engine."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Generic, NoReturn, Protocol, TypeVar, get_args

from paritybit.drive.company import Plays
from paritybit.drive.directing import compare, counted, least, serve, shrink
from paritybit.drive.failures import EngineFailedError, StalledError, judge_failure
from paritybit.drive.legs import LACKING, LackingError
from paritybit.drive.requests import kinds_of
from paritybit.drive.script import Script, read
from paritybit.drive.served import Common
from paritybit.drive.warm import OPTION, forked
from paritybit.watch import journal

MOST_POLLS = 3000
"""The most polls in a row without a forward while requests wait."""


@dataclass
class Progress:
    """The number of forwards of an engine, and its number of polls since the last one."""

    forwards: int = 0
    polls: int = 0

    def require(self, forwards: int, waiting: int) -> None:
        """Raise StalledError if requests wait and the engine has not run a batch for too long."""
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
        """The number of batches that ran."""

    def start(self, direct: Callable[[Plays], object]) -> None:
        """Start the engine, and call `direct` when it is ready. Returns when `direct` has ended.

        Raises EngineFailedError if the engine raises, and LackingError for unsupported settings.
        """


Kind = TypeVar("Kind", bound=Common)


def parser_of(kind: type[Common]) -> argparse.ArgumentParser:
    """Return the command line that serves an engine: its settings, what is served, and how long.

    Each setting of `kind` is an option of the same name. A setting that is on by default has an
    option `--no-NAME`.
    """
    package, _, _ = kind.__module__.rpartition(".")
    made = argparse.ArgumentParser(prog=f"python -m {package}")
    choices = kind.choices()
    for setting in fields(kind):
        name, default = setting.name, setting.default
        option = name.replace("_", "-")
        if default is True:
            made.add_argument(f"--no-{option}", dest=name, action="store_false")
        elif default is False:
            made.add_argument(f"--{option}", action="store_true")
        else:
            whole = int in (setting.type, *get_args(setting.type))
            made.add_argument(
                f"--{option}",
                type=int if whole else str,
                choices=choices.get(name),
                default=default,
            )
    made.add_argument("--until", type=float, help="play until this time, then until idle")
    made.add_argument("--forwards", type=int, help="play for so many forwards, then until idle")
    made.add_argument("--least", type=int, help="play each kind of wave, and so many forwards")
    made.add_argument("--after", type=float, default=0.0, help="with --least, until this time")
    made.add_argument("--seconds", type=float, help="shrink for this long")
    made.add_argument("--script", type=Path, help="play this script, with its settings")
    made.add_argument("--shrink", metavar="KEY", help="shrink the script that has this finding")
    made.add_argument("--best", type=Path, help="where the smallest script is written")
    return made


def served_as(kind: type[Kind], asked: argparse.Namespace) -> Kind:
    """Return the settings in a parsed command line."""
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in vars(asked).items() if name in names})


@dataclass(frozen=True)
class Drive(Generic[Kind]):
    """How to serve an engine in this process.

    - `kind`: the class of its settings.
    - `prepare`: installs replacements of missing parts for a device. On a CPU, it also imports the
      engine.
    - `engine`: returns the engine for settings.
    """

    kind: type[Kind]
    prepare: Callable[[str], object]
    engine: Callable[[Kind], Engine]
    of_release: Sequence[str] = ()
    """Settings that describe the release, and are not part of a script."""


def main(drive: Drive[Kind]) -> NoReturn:
    """Play as the command line specifies, in this process or in forks of it."""
    words = sys.argv[1:]
    forks = words[:1] == [OPTION]
    if forks:
        drive.prepare("cpu")
        words = forked(int(words[1]))
    asked = parser_of(drive.kind).parse_args(words)
    if not forks:
        drive.prepare(asked.device)
    leave(play(asked, drive))


def play(asked: argparse.Namespace, drive: Drive[Kind]) -> int:
    """Play as specified, and return the exit code.

    A script has its own settings, except those in `of_release`.
    """
    kind = drive.kind
    served, script = served_as(kind, asked), None
    if asked.script is not None:
        script = read(asked.script)
        own = {name: getattr(served, name) for name in drive.of_release}
        served = replace(kind.of(script.settings), **own)
    return run(drive.engine(served), served, script, asked)


def reached(forwards: int, asked: argparse.Namespace) -> bool:
    """Return whether so many forwards are enough, and the time to play is over."""
    return bool(forwards >= asked.least and time.time() >= asked.after)


def leave(code: int) -> NoReturn:
    """End this process immediately, because threads of the engine may still run."""
    if (lines := journal.of_process()) is not None:
        lines.settle()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(engine: Engine, served: Common, script: Script | None, asked: argparse.Namespace) -> int:
    """Start the engine, serve it as specified, and return the exit code."""
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
        given = served.traffic() if script is None else iter(script.waves)
        if asked.least is not None:
            kinds = len(kinds_of(limits))
            given = least(given, kinds, lambda: reached(engine.forwards, asked))

        def stop() -> bool:
            late = asked.until is not None and time.time() >= asked.until
            enough = asked.forwards is not None and engine.forwards >= asked.forwards
            return bool(signals) or late or enough

        if script is None and not served.alone:
            compare(ready, served, stop)
        wanted = served.ACTIONS if served.actions else ()
        serve(ready, served, counted(given, limits, wanted), stop)
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
