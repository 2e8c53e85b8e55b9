"""What the legs of a trial tell while they run: lines of a file that the first process reads.

How much time is left is estimated from what the legs have played of what was planned. What they
have found is kept should they never end.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paritybit.harness.campaigns.hunt import HuntResult

EVERY_SECONDS = 0.3
"""How often the file is read."""


@dataclass(frozen=True)
class SoFar:
    """What a leg has found by now, as JSON data: with a case of each violation, not yet shrunk.

    `faults` are the verdicts on the fault classes that are present; none is absent so far.
    """

    findings: list[dict[str, Any]]
    faults: list[dict[str, Any]]
    cases: list[dict[str, Any]]


@dataclass(frozen=True)
class Played:
    """A leg has played one more schedule: what it has played by now, and what that violated.

    `done` of `planned` are counted in `unit`: "schedules", or the "steps" of a soak. `found` is
    None where nothing was found since it was last told.
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
    found: SoFar | None = None


def played_from_json(data: dict[str, Any]) -> Played:
    """Return what a leg told in a line."""
    found = None if data["found"] is None else SoFar(**data["found"])
    return Played(**{**data, "violated": tuple(data["violated"]), "found": found})


def after(before: Played | None, told: Played) -> Played:
    """Return what a leg told last, with what it had found before where it found nothing more."""
    return replace(told, found=told.found or (before.found if before is not None else None))


def tell(path: Path, played: Played) -> None:
    """Append a line, whole, whoever else does so at the same time."""
    line = json.dumps(asdict(played)) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@dataclass
class Teller:
    """Tells of a leg in a file: of every schedule, and of what it has found when that has grown.

    `so_far` returns all that the leg has found.
    """

    path: Path
    leg: str
    planned: int
    unit: str
    so_far: Callable[[], SoFar]
    known: tuple[str, ...] | None = None

    def tell(self, result: HuntResult, failing: Iterable[str], faults: Iterable[str]) -> None:
        """Tell what was played, the properties that failed and the fault classes that showed."""
        violated, before = tuple(sorted(failing)), self.known
        self.known = (*violated, *faults)
        played = Played(
            leg=self.leg,
            done=result.steps if self.unit == "steps" else result.schedules,
            planned=self.planned,
            unit=self.unit,
            schedules=result.schedules,
            steps=result.steps,
            replays=result.replays,
            padded=result.padded_replays,
            violated=violated,
            found=None if self.known == before else self.so_far(),
        )
        tell(self.path, played)


@contextmanager
def listening(path: Path, hear: Callable[[Played], None]) -> Iterator[None]:
    """Call `hear` with each line that is told within, soon after it was."""
    done = threading.Event()
    path.touch()

    def follow() -> None:
        with path.open() as lines:
            ended, line = False, ""
            while not ended:
                ended = done.wait(EVERY_SECONDS)
                for part in lines:
                    line += part  # A long line may be read while it is written.
                    if line.endswith("\n"):
                        hear(played_from_json(json.loads(line)))
                        line = ""

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
