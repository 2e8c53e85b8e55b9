"""Plays an engine that serves requests, for as long as it is asked to. Knows no engine."""

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from paritybit.drive.legs import LACKING
from paritybit.drive.player import Player
from paritybit.drive.settings import LackingError
from paritybit.watch import journal

LONGEST_WAIT = 15
"""Seconds for which an engine that is asked again and again may serve nobody who waits."""


class EngineFailedError(BaseException):
    """The engine raised. It holds what. An engine's own handlers let it pass."""


@dataclass
class Progress:
    """How far an engine has come, and when it was found to have come so far."""

    forwards: int = 0
    since: float = 0.0

    def require(self, forwards: int, waiting: int) -> None:
        """Raise EngineFailedError if so many requests wait and no batch ran for long."""
        now = time.monotonic()
        if forwards != self.forwards or not waiting:
            self.forwards, self.since = forwards, now
        elif now - self.since > LONGEST_WAIT:
            raise EngineFailedError(
                f"the engine stalled: {waiting} requests wait and no batch ran for {LONGEST_WAIT} s"
            )


class Engine(Protocol):
    """An engine in this process. `forwards` counts what it ran."""

    served: Any
    player: Player | None

    @property
    def forwards(self) -> int:
        """How many batches ran."""

    def serve(self, stop: Callable[[], bool]) -> None:
        """Serve until `stop` says so, then until the engine is idle."""


def play(engine: Engine, seconds: float | None, forwards: int | None) -> int:
    """Serve until the time or the number of forwards is reached; return the exit code."""
    lines = journal.of_process()
    if lines is not None:
        lines.scope(**engine.served.scope())
    begun, asked_to_end = list[float](), list[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *arguments: asked_to_end.append(arguments[0]))

    def stop() -> bool:
        if not begun:  # The engine has started: its time counts from now.
            begun.append(time.monotonic())
        late = seconds is not None and time.monotonic() - begun[0] >= seconds
        return bool(asked_to_end) or late or (forwards is not None and engine.forwards >= forwards)

    try:
        engine.serve(stop)
    except LackingError as error:
        sys.stderr.write(f"{error}\n")
        return LACKING
    except EngineFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    player = engine.player
    if player is not None and begun:
        took = time.monotonic() - begun[0]
        sys.stderr.write(
            f"{engine.forwards} forwards, {player.served} requests, {player.played} waves "
            f"in {took:.1f} s\n"
        )
    return 0
