"""Directs an engine that has started: it plays what it is given, or shrinks it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from paritybit.drive.company import LONGEST_PLAY, Comparison, Plays
from paritybit.drive.failures import EngineFailedError, judge_failure
from paritybit.drive.forks import in_fork
from paritybit.drive.operating.actions import COUNT
from paritybit.drive.player import PlayedError
from paritybit.drive.requests import BOUNDARY, Limits, boundaries, reached
from paritybit.drive.script import Script, Setting, Wave, wave_data, write
from paritybit.drive.served import Common
from paritybit.drive.shrink import Waves, shrunk
from paritybit.watch import journal


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

    Each proposal is played by a fork of the engine that has just started. Returns False if the
    script itself does not have the finding, and writes nothing then.
    """
    deadline = time.monotonic() + seconds

    def play(waves: Waves) -> bool:
        with suppress(PlayedError, EngineFailedError, Exception):
            serve(engine, served, iter(waves), stop_at(key))
        return found(key)

    def fails(waves: Waves) -> bool:
        journal.count(proposals=1)
        if in_fork(lambda: play(waves), LONGEST_PLAY) is not True:
            return False
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


def stop_at(key: str) -> Callable[[], bool]:
    """Return what ends a play as soon as there is the finding with this key."""

    def stop() -> bool:
        if found(key):
            raise PlayedError
        return False

    return stop
