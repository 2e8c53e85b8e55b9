"""Case files: one failing schedule as JSON that anyone can replay, independent of Hypothesis."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.schedule import Schedule, from_json, to_json
from harness.trial import Trial, trial_from_json

FORMAT = "paritybit-case"
VERSION = 1
KEYS = frozenset({"format", "version", "trial", "schedule", "sought", "seed", "violations"})


@dataclass(frozen=True)
class Case:
    """A schedule, the trial it fails in, and what it violated when it was found.

    `sought` is the property the hunt was for, None for any; `seed` is the hunter's.
    """

    trial: Trial
    schedule: Schedule
    sought: str | None
    seed: int
    violations: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON data."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "trial": self.trial.to_json(),
            "schedule": to_json(self.schedule),
            "sought": self.sought,
            "seed": self.seed,
            "violations": list(self.violations),
        }


def dump_json(data: Any) -> str:
    """Return JSON text that is the same, byte for byte, for the same data."""
    return json.dumps(data, indent=1) + "\n"


def write_case(case: Case, path: Path) -> None:
    """Write a case file."""
    path.write_text(dump_json(case.to_json()))


def load_json(path: Path, file_format: str, version: int) -> dict[str, Any]:
    """Return the JSON object of a file of this project.

    Raises ValueError, in one sentence, if it cannot be read, is not JSON, or has
    another format or version.
    """
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path.name} is not whole JSON text: {error}") from error
    if not isinstance(data, dict) or data.get("format") != file_format:
        raise ValueError(f"{path.name} is not a {file_format} file")
    if data.get("version") != version:
        raise ValueError(
            f"{path.name} has version {data.get('version')!r}; this build reads {version}"
        )
    return data


def load_case(path: Path) -> Case:
    """Return the case of a file. Raises ValueError, in one sentence, for a malformed one.

    UnknownNameError, a ValueError too, tells a case of what this build lacks.
    """
    data = load_json(path, FORMAT, VERSION)
    if data.keys() != KEYS:
        raise ValueError(f"{path.name}: a case has exactly the keys {', '.join(sorted(KEYS))}")
    return Case(
        trial=trial_from_json(data["trial"]),
        schedule=from_json(data["schedule"]),
        sought=data["sought"],
        seed=data["seed"],
        violations=tuple(data["violations"]),
    )
