"""What a process serves an engine, as a JSON file."""

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from paritybit.drive.adapters import Adapter, Environment
from paritybit.drive.script import Setting, Wave, wave_of

MODULE = "paritybit.drive"
"""The module that does a job: `python -m paritybit.drive ENGINE FILE`."""


@dataclass(frozen=True)
class Job:
    """Settings of an engine, by name, and what it is served.

    - `waves`: the waves of a script. With None, requests are generated.
    - `until`: the time after which the engine only becomes idle.
    - `forwards`: the same, as a number of forwards.
    - `least`: play each kind of wave, and so many forwards, and until the time `after`.
    - `shrink`: the key of a finding whose waves are shrunk for `seconds`. `best` is the file for
      the smallest script.
    """

    settings: dict[str, Setting]
    waves: tuple[Wave, ...] | None = None
    until: float | None = None
    forwards: int | None = None
    least: int | None = None
    after: float = 0.0
    shrink: str | None = None
    best: str = ""
    seconds: float = 0.0


def read(path: Path) -> Job:
    """Return the job in a file that `command` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    waves = None if data["waves"] is None else tuple(map(wave_of, data["waves"]))
    return Job(**{**data, "waves": waves})


def command(
    adapter: Adapter, environment: Environment, job: Job, folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Write a job to a new file in a folder.

    Returns the command that does it, and its environment variables.
    """
    with tempfile.NamedTemporaryFile(
        "w", dir=folder, prefix="job-", suffix=".json", delete=False, encoding="utf-8"
    ) as file:
        json.dump(asdict(job), file)
    served = adapter.settings.of(job.settings)
    words = [sys.executable, "-m", MODULE, adapter.package.name, file.name]
    return words, adapter.variables(environment, served)
