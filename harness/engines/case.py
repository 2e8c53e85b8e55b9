"""Case files of engines: a case, and the engine whose runner violates what it is about."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paritybit.harness.errors import MalformedError, quoted
from paritybit.harness.lockstep.tracebacks import without_paths
from paritybit.harness.records.case import (
    Case,
    case_from_json,
    dump_json,
    from_version_3,
    is_of_format,
    of_format,
    read_json,
)
from paritybit.harness.records.files import write_whole

FORMAT = "paritybit-engine-case"
VERSION = 2
KEYS = frozenset({"format", "version", "engine", "case"})
KEYS_OF_VERSION_1 = frozenset(
    {"format", "version", "engine", "runner", "trial", "schedule", "seed", "target", "message"}
)
RENAMED_PROPERTIES = {"hermetic_reads": "hermetic_replay"}
"""What properties of version 1 are called since version 2."""


@dataclass(frozen=True)
class EngineCase:
    """A case, and the engine that it was found in, as it was asked for."""

    engine: str
    case: Case

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON data."""
        case = self.case.to_json()
        return {"format": FORMAT, "version": VERSION, "engine": self.engine, "case": case}

    def write(self, path: Path) -> None:
        """Write the case file, which names no path of this machine.

        Raises CannotRunError where it cannot be written.
        """
        write_whole(path, dump_json(without_paths(self.to_json())))


def is_of_engine(data: Any) -> bool:
    """Whether a file's JSON data says that it is an engine's case."""
    return is_of_format(data, FORMAT)


def load_engine_case(path: Path) -> EngineCase:
    """Return the case of a file. Raises MalformedError, in one sentence, for a malformed one."""
    return engine_case_of(read_json(path), path.name)


def engine_case_of(data: Any, name: str) -> EngineCase:
    """Return the case of a file's JSON data. Raises MalformedError for a malformed one."""
    data = of_format(data, name, FORMAT, VERSION, 1)
    if data["version"] == 1:
        data = from_version_1(data, name)
    if data.keys() != KEYS:
        raise MalformedError(
            f"{name}: a case must have exactly these keys: {', '.join(sorted(KEYS))}"
        )
    if not isinstance(data["engine"], str):
        raise MalformedError(f"{name}: {quoted(data['engine'])} is not a valid engine for a case")
    return EngineCase(data["engine"], case_from_json(data["case"], name))


def from_version_1(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return JSON data of a case of version 1 as version 2 has it: the case within its own.

    Raises ValueError for a malformed one.
    """
    old = from_version_3(dict(data))
    if old.keys() != KEYS_OF_VERSION_1:
        wanted = ", ".join(sorted(KEYS_OF_VERSION_1))
        raise MalformedError(f"{name}: a case must have exactly these keys: {wanted}")
    target = RENAMED_PROPERTIES.get(str(old["target"]), old["target"])
    violation = {"property": target, "step": 0, "message": old["message"], "where": {}}
    case = {
        "trial": old["trial"],
        "schedule": old["schedule"],
        "target": target,
        "seed": old["seed"],
        "violations": [violation],
    }
    return {"format": FORMAT, "version": VERSION, "engine": old["engine"], "case": case}


def cases_of(engine: str, cases: Iterable[Case]) -> dict[str, EngineCase]:
    """Return the cases that an engine's trial found, by file name."""
    return {
        f"{case.target}-{case.trial.runner}-{case.trial.preset}.json": EngineCase(engine, case)
        for case in cases
    }
