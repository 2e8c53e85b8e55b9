"""What the legs of a trial tell while they run: lines of a file that the first process reads."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

EVERY_SECONDS = 0.3
"""How often the file is read."""


@dataclass(frozen=True)
class Played:
    """A leg has played one more of `planned` schedules: what that gave, and what it violated."""

    leg: str
    schedules: int
    planned: int
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
