"""Directs an engine that has started: it plays what it is given, or shrinks it."""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from paritybit.drive.player import PlayedError, Player
from paritybit.drive.requests import Limits, boundaries, reached
from paritybit.drive.script import Script, Setting, Wave, wave_data, write
from paritybit.drive.shrink import Waves, shrunk
from paritybit.watch import journal


class Plays(Protocol):
    """An engine that has started."""

    def play(self, waves: Iterator[Wave], stop: Callable[[], bool]) -> Player:
        """Serve waves until `stop` says so or all are served, then until the engine is idle."""


def noted(waves: Iterator[Wave], settings: Mapping[str, Setting], limits: Limits) -> Iterator[Wave]:
    """Yield waves, and write each to the journal before it is played."""
    lines = journal.of_process()
    if lines is not None:
        lines.write("script", settings=settings)
        lines.count(**{f"boundary: {name}": 0 for name in boundaries(limits)})
    for wave in waves:
        if lines is not None:
            lines.write("wave", wave=wave_data(wave))
            lines.count(**{f"boundary: {name}": 1 for name in reached(wave, limits)})
        yield wave


def in_fork(work: Callable[[], Any], seconds: float) -> Any:
    """Return what `work` returns in a fork of this process, as JSON data.

    None if it takes longer, or fails. What it changes stays in the fork. It needs an engine without
    threads and without a GPU.
    """
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reads)
            journal.of_process()  # Begins one for the fork.
            os.write(writes, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    try:
        return json.loads(received(reads, time.monotonic() + seconds) or "null")
    finally:
        os.close(reads)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def received(reads: int, deadline: float) -> bytes:
    """Return what a pipe gives until it is closed, nothing if it is not closed in time."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([reads], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b""
        part = os.read(reads, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)


LONGEST_PLAY = 120.0
"""Seconds that a proposal may take."""


def shrink(engine: Plays, script: Script, key: str, best: Path, seconds: float) -> bool:
    """Write to `best` the smallest script found in time that has the finding with this key.

    Each proposal is played by a fork of the engine that has just started. Returns False if the
    script itself does not have the finding, and writes nothing then.
    """
    deadline = time.monotonic() + seconds
    lines = journal.of_process()

    def play(waves: Waves) -> bool:
        engine.play(iter(waves), stop_at(key))
        return found(key)

    def fails(waves: Waves) -> bool:
        if lines is not None:
            lines.count(proposals=1)
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
