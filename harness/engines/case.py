"""Case files of engines: one schedule that an engine's runner violates something on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.lockstep.config import trial_from_json
from harness.records.case import check_sizes, dump_json, load_json
from harness.schedules.schedule import from_json

FORMAT = "paritybit-engine-case"
VERSION = 1
KEYS = frozenset(
    {"format", "version", "engine", "runner", "trial", "schedule", "seed", "target", "message"}
)


@dataclass(frozen=True)
class EngineCase:
    """A schedule, the engine and its runner, our side's trial, and what was violated.

    `engine` is as it was asked for. `trial`, `schedule` are JSON data, for a trial's process.
    """

    engine: str
    runner: str
    trial: dict[str, Any]
    schedule: dict[str, Any]
    seed: int
    target: str
    message: str

    def write(self, path: Path) -> None:
        """Write the case file."""
        path.write_text(dump_json({"format": FORMAT, "version": VERSION, **vars(self)}))


def is_engine_case(path: Path) -> bool:
    """Whether a file says that it is an engine's case."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("format") == FORMAT


def load_engine_case(path: Path) -> EngineCase:
    """Return the case of a file. Raises ValueError, in one sentence, for a malformed one."""
    data = load_json(path, FORMAT, VERSION)
    if data.keys() != KEYS:
        raise ValueError(f"{path.name}: a case has exactly the keys {', '.join(sorted(KEYS))}")
    for key in ("engine", "runner", "target", "message"):
        if not isinstance(data[key], str):
            raise ValueError(f"{path.name}: {key} of a case cannot be {data[key]!r}")
    if type(data["seed"]) is not int:
        raise ValueError(f"{path.name}: the seed of a case cannot be {data['seed']!r}")
    check_sizes(trial_from_json(data["trial"]))
    from_json(data["schedule"])
    return EngineCase(**{key: data[key] for key in KEYS - {"format", "version"}})


def cases_of(engine: str, seed: int, answer: Mapping[str, Any]) -> dict[str, EngineCase]:
    """Return the cases of an engine's answer by file name."""
    return {
        f"{each['target']}-{each['runner']}-{each['trial']['preset']}.json": EngineCase(
            engine=engine, seed=seed, **each
        )
        for each in answer["cases"]
    }
