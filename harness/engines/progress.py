"""What the legs of a trial tell while they run: lines of a file that the first process reads.

How much time is left is estimated from what the legs have played of what was planned.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

EVERY_SECONDS = 0.3
"""How often the file is read."""


@dataclass(frozen=True)
class Played:
    """A leg has played one more schedule: what it has played by now, and what that violated.

    `done` of `planned` are counted in `unit`: "schedules", or the "steps" of a soak.
    """

    leg: str
    done: int
    planned: int
    unit: str
    schedules: int
    steps: int
    replays: int
    padded: int
    violated: tuple[str, ...]


def tell(path: Path, played: Played) -> None:
    """Append a line, whole, whoever else does so at the same time."""
    line = json.dumps(asdict(played)) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@contextmanager
def listening(path: Path, hear: Callable[[Played], None]) -> Iterator[None]:
    """Call `hear` with each line that is told within, soon after it was."""
    done = threading.Event()
    path.touch()

    def follow() -> None:
        with path.open() as lines:
            ended = False
            while not ended:
                ended = done.wait(EVERY_SECONDS)
                for line in lines:
                    values = json.loads(line)
                    hear(Played(**{**values, "violated": tuple(values["violated"])}))

    listener = threading.Thread(target=follow, daemon=True)
    listener.start()
    try:
        yield
    finally:
        done.set()
        listener.join()


STARTING = 0.25
"""How much of a leg its start takes, about: the engine is loaded, a runner built and captured."""


class TimeLeft:
    """Estimates how long legs still run, from the shares of them that are done.

    Every leg counts alike, and its start as STARTING of it. Shrinking what fails comes after a
    leg's last schedule, and is not foreseen.
    """

    def __init__(self, legs: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.started = clock()
        self.done = dict.fromkeys(legs, 0.0)

    def play(self, played: Played) -> None:
        """Note how far a leg has come."""
        share = STARTING + (1.0 - STARTING) * min(1.0, played.done / played.planned)
        self.done[played.leg] = max(self.done[played.leg], share)

    def end(self, leg: str) -> None:
        """Note that a leg has ended, whatever it came to."""
        self.done[leg] = 1.0

    @property
    def seconds(self) -> float | None:
        """How many seconds are left; None while nothing is done yet, or once everything is."""
        done, legs = sum(self.done.values()), len(self.done)
        if not 0.0 < done < legs:
            return None
        return (self.clock() - self.started) * (legs - done) / done
