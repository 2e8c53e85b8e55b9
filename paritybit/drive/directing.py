"""Plays waves on a started engine, or shrinks a script on it."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paritybit.drive.company import CHECK, LONGEST_PLAY, Comparison, Plays
from paritybit.drive.failures import EngineFailedError, judge_failure
from paritybit.drive.forks import ForkFailedError, in_fork
from paritybit.drive.limits import BOUNDARY, Limits, boundaries, reached
from paritybit.drive.operating.actions import COUNT, WHOLE
from paritybit.drive.player import PlayedError
from paritybit.drive.script import Script, Setting, Wave, write
from paritybit.drive.served import Common
from paritybit.drive.shrink import Waves, shrunk
from paritybit.watch import journal
from paritybit.watch.settings import TRIED

SLACK = 8
"""A proposal may take twice the forwards of the smallest script, and this many more."""


def noted(waves: Iterator[Wave], settings: Mapping[str, Setting]) -> Iterator[Wave]:
    """Yield waves. Each is written to the journal before it is played."""
    lines = journal.of_process()
    if lines is not None:
        lines.write("script", settings=settings)
    for wave in waves:
        if lines is not None:
            lines.write("wave", wave=asdict(wave))
        yield wave


def counted(waves: Iterator[Wave], limits: Limits, actions: Sequence[str]) -> Iterator[Wave]:
    """Yield waves, and count the boundaries that they reach. Actions are counted when they run."""
    journal.count(**{f"{COUNT}{action}": 0 for action in actions})
    for name in boundaries(limits):
        reach(name, 0)
    for wave in waves:
        for name in reached(wave, limits):
            reach(name, 1)
        yield wave


def least(waves: Iterator[Wave], kinds: int, enough: Callable[[], bool]) -> Iterator[Wave]:
    """Return waves until each of so many kinds was served and `enough` returns True.

    Kinds take turns. Counts WHOLE at once, and at the end.
    """
    journal.count(**{WHOLE: 0})

    def given() -> Iterator[Wave]:
        for number, wave in enumerate(waves):
            if number >= kinds and enough():
                journal.count(**{WHOLE: 1})
                return
            yield wave

    return given()


def count_retractions(scheduler: Any, name: str, page: int, number: Callable[[Any], int]) -> None:
    """Count the requests that calls of a method of a scheduler retract, as `number` states.

    Pages larger than 1 are a boundary of their own: a retracted request gives back a part of one.
    """
    method = getattr(scheduler, name)
    boundary = "a request is retracted" + (" with pages larger than 1" if page > 1 else "")
    reach(boundary, 0)

    @functools.wraps(method)
    def retract(*arguments: Any, **named: Any) -> Any:
        made = method(*arguments, **named)
        reach(boundary, number(made))
        return made

    setattr(scheduler, name, retract)


def reach(boundary: str, number: int) -> None:
    """Count how often requests reached a boundary."""
    journal.count(**{f"{BOUNDARY}{boundary}": number})


def compare(engine: Plays, served: Common, stop: Callable[[], bool]) -> None:
    """Compare some requests with themselves alone, if the settings allow it."""
    journal.count(**{compared(served): 0})
    if (wave := served.company()) is not None:
        serve(engine, replace(served, alone=True), iter((wave,)), stop)


def compared(served: Common) -> str:
    """Return the name of the count of comparisons, which each model has."""
    return f"{TRIED}{CHECK} ({served.model})"


def serve(engine: Plays, served: Common, waves: Iterator[Wave], stop: Callable[[], bool]) -> None:
    """Serve waves with some settings, until all are served or `stop` returns True.

    An error of the engine is judged and raised again.
    """

    def note(given: Iterator[Wave]) -> Iterator[Wave]:
        return noted(given, served.scope())

    try:
        if not served.alone:
            engine.play(note(waves), stop)
            return
        comparison = Comparison(engine, note, compared(served))
        for wave in note(waves):
            comparison.judge(wave, stop)
            if stop():
                return
    except (Exception, EngineFailedError) as error:
        judge_failure(error)
        raise


def shrink(
    engine: Plays, served: Common, script: Script, key: str, best: Path, seconds: float
) -> bool:
    """Write the smallest script that shows the finding with this key, and was found in time.

    Each proposal is played in a fork of the freshly started engine. It has as many forwards as the
    smallest script so far, times two, to show the finding. A proposal without the finding therefore
    costs little. Returns False, and writes nothing, if the script itself does not show the finding.
    """
    deadline = time.monotonic() + seconds
    most = math.inf

    def play(waves: Waves) -> int | None:
        with suppress(PlayedError, EngineFailedError, Exception):
            serve(engine, served, iter(waves), stop_at(key, most))
        return forwards() if found(key) else None

    def fails(waves: Waves) -> bool:
        nonlocal most
        journal.count(proposals=1)
        took = None
        with suppress(ForkFailedError):
            took = in_fork(lambda: play(waves), LONGEST_PLAY)
        if not isinstance(took, int):
            return False
        most = 2 * took + SLACK
        write(replace(script, waves=waves), best)
        return True

    if not fails(script.waves):
        return False
    shrunk(script.waves, fails, lambda: time.monotonic() > deadline)
    return True


def found(key: str) -> bool:
    """Return whether this process has the finding with this key."""
    if (lines := journal.of_process()) is None:
        return False
    lines.settle()
    return key in lines.findings


def forwards() -> int:
    """Return the number of watched forwards in this process."""
    lines = journal.of_process()
    return 0 if lines is None else lines.counts.get("forwards", 0)


def stop_at(key: str, most: float) -> Callable[[], bool]:
    """Return a function that ends a play at the finding with this key, or after `most` forwards."""

    def stop() -> bool:
        if found(key) or forwards() > most:
            raise PlayedError
        return False

    return stop
