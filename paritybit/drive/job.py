"""What a process serves an engine, as a JSON file."""

import sys
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import msgspec

from paritybit.drive.adapters import Adapter, Environment
from paritybit.drive.script import Setting, Wave
from paritybit.watch.settings import TRIED

MODULE = "paritybit.drive"
"""The module that does a job: `python -m paritybit.drive ENGINE FILE`."""


@dataclass(frozen=True)
class Job:
    """Settings of an engine, by name, and what it is served.

    - `waves`: the waves of a script. With None, requests are generated.
    - `until`: the time after which the engine only becomes idle.
    - `most`: it does so this many seconds after it has started, too.
    - `least`: play AT_LEAST waves, and so many forwards, for the seconds `after` at least.
    - `compare`: first compare some requests with themselves alone, if the settings allow it.
    - `shrink`: the key of a finding whose waves are shrunk for `seconds`, to the file `best`.
    """

    settings: dict[str, Setting]
    waves: tuple[Wave, ...] | None = None
    until: float | None = None
    most: float | None = None
    least: int | None = None
    after: float = 0.0
    compare: bool = False
    shrink: str | None = None
    best: str = ""
    seconds: float = 0.0


def comparisons(model: str) -> str:
    """Return the name of the count of a model's requests that were compared."""
    return f"{TRIED}company ({model})"


def read(path: Path) -> Job:
    """Return the job in a file that `command` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Job)


def command(
    adapter: Adapter, environment: Environment, job: Job, folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Write a job to a file in a folder. Returns the command that does it, and its variables."""
    file = folder / f"job-{uuid4()}.json"
    file.write_bytes(msgspec.json.encode(job))
    served = adapter.settings.of(job.settings)
    words = [sys.executable, "-m", MODULE, adapter.package.name, str(file)]
    return words, adapter.variables(environment, served)
