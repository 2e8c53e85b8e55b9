"""Directs an engine that has started: it plays what it is given, or shrinks it."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paritybit.drive.company import LONGEST_PLAY, Comparison, Plays
from paritybit.drive.failures import EngineFailedError, judge_failure
from paritybit.drive.forks import in_fork
from paritybit.drive.limits import BOUNDARY, Limits, boundaries, reached
from paritybit.drive.operating.actions import COUNT
from paritybit.drive.player import PlayedError
from paritybit.drive.script import Script, Setting, Wave, wave_data, write
from paritybit.drive.served import Common
from paritybit.drive.shrink import Waves, shrunk
from paritybit.watch import journal

SLACK = 8
"""Forwards that a proposal may take besides twice those of the smallest script."""


def noted(waves: Iterator[Wave], settings: Mapping[str, Setting]) -> Iterator[Wave]:
    """Yield waves, and write each to the journal before it is played."""
    lines = journal.of_process()
    if lines is not None:
        lines.write("script", settings=settings)
    for wave in waves:
        if lines is not None:
            lines.write("wave", wave=wave_data(wave))
        yield wave


def counted(waves: Iterator[Wave], limits: Limits, actions: Sequence[str]) -> Iterator[Wave]:
    """Yield waves, and count the boundaries that they reach. The actions are counted when done."""
    journal.count(**{f"{COUNT}{action}": 0 for action in actions})
    for name in boundaries(limits):
        reach(name, 0)
    for wave in waves:
        for name in reached(wave, limits):
            reach(name, 1)
        yield wave


def reach(boundary: str, number: int) -> None:
    """Count how often requests reached something that they are to reach."""
    journal.count(**{f"{BOUNDARY}{boundary}": number})


def serve(engine: Plays, served: Common, waves: Iterator[Wave], stop: Callable[[], bool]) -> None:
    """Serve waves as the settings say, until all are served or `stop` says so.

    An error of the engine is judged, and raised.
    """

    def note(given: Iterator[Wave]) -> Iterator[Wave]:
        return noted(given, served.scope())

    try:
        if not served.alone:
            engine.play(note(waves), stop)
            return
        comparison = Comparison(engine, note)
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
    """Write to `best` the smallest script found in time that has the finding with this key.

    Each proposal is played by a fork of the engine that has just started. It fails if the finding
    appears within twice the forwards that the smallest script took, so that a proposal without the
    finding costs little. Returns False if the script itself does not have the finding, and writes
    nothing then.
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
    """Whether this process has the finding with this key."""
    lines = journal.of_process()
    return lines is not None and key in lines.findings


def forwards() -> int:
    """Return how many forwards of this process were watched."""
    lines = journal.of_process()
    return 0 if lines is None else lines.counts.get("forwards", 0)


def stop_at(key: str, most: float) -> Callable[[], bool]:
    """Return what ends a play at the finding with this key, or after so many forwards."""

    def stop() -> bool:
        if found(key) or forwards() > most:
            raise PlayedError
        return False

    return stop
