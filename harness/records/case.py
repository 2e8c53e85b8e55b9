"""Case files: one failing schedule as JSON that anyone can replay, independent of Hypothesis."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.errors import MalformedError, cut, known, quoted
from paritybit.harness.lockstep.config import TrialConfig, trial_from_json
from paritybit.harness.records import typed_json
from paritybit.harness.records.files import read_bytes, write_whole
from paritybit.harness.schedules.schedule import Schedule

Kind = TypeVar("Kind")

FORMAT = "paritybit-case"
VERSION = 4
RENAMED = {"sought": "target", "era": "scheme", "told": "message"}
"""Keys of version 3 by their new names in version 4."""

KEYS = frozenset({"format", "version", "trial", "schedule", "target", "seed", "violations"})
OPTIONAL = frozenset({"history"})
"""Keys that may be missing."""

MOST_SLOTS = 2**16
MOST_ROWS = 2**10
"""Size limits of a case, so that a wrong digit does not use all memory of the machine."""

MOST_STEPS = 2**16
"""The maximum number of steps in schedule and history together. They play for hours."""

DEEPEST = 50
"""The maximum nesting of lists and objects in a file, many times what any file needs."""

MOST_DIGITS = 20
"""The maximum number of digits of an integer: those of an unsigned 64-bit integer."""


@dataclass(frozen=True)
class Case:
    """A schedule, its trial, and its violations when it was found.

    - `target`: the property that the hunt looked for, or None for any.
    - `seed`: the seed of the hunt.
    - `history`: schedules to play first. A case that needs them depends on undeclared state.
    """

    trial: TrialConfig
    schedule: Schedule
    target: str | None
    seed: int
    violations: tuple[dict[str, Any], ...]
    history: tuple[Schedule, ...] = ()

    @property
    def expected(self) -> frozenset[str]:
        """The properties that must be violated: the target, or all recorded ones."""
        if self.target is not None:
            return frozenset({self.target})
        return frozenset(violation["property"] for violation in self.violations)

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON data."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "trial": self.trial.to_json(),
            "schedule": self.schedule.to_data(),
            "target": self.target,
            "seed": self.seed,
            "violations": list(self.violations),
        } | ({"history": [one.to_data() for one in self.history]} if self.history else {})


def dump_json(data: Any) -> str:
    """Return deterministic JSON text."""
    return json.dumps(data, indent=1) + "\n"


def write_case(case: Case, path: Path) -> None:
    """Write a case file. Raises CannotRunError if it cannot be written."""
    write_whole(path, dump_json(case.to_json()))


def read_json(path: Path) -> Any:
    """Return the JSON data of a file or pipe. Raises as `read_bytes` and `json_of` do."""
    if path.is_dir():
        files = cut(", ".join(sorted(file.name for file in path.glob("*.json"))) or "none")
        raise MalformedError(f"{path.name or path} is a folder. JSON files in it: {files}")
    return json_of(read_bytes(path), path.name)


def json_of(text: bytes, name: str) -> Any:
    """Return the JSON data of a file's text. `name` is the file's name in messages.

    Raises MalformedError for text that is not JSON in UTF-8, has a duplicate key or an integer with
    too many digits, or is nested too deeply.
    """
    try:
        data = json.loads(text.decode(), object_pairs_hook=_unique, parse_int=_whole_number)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{name} is not valid JSON: {error}") from error
    if deeper_than(DEEPEST, data):
        raise MalformedError(f"{name} is nested more than {DEEPEST} levels deep")
    return data


def _whole_number(text: str) -> int:
    """Return an integer. Raises ValueError for one with too many digits."""
    if len(text) > MOST_DIGITS + text.startswith("-"):
        raise ValueError(f"a whole number has at most {MOST_DIGITS} digits, not {len(text)}")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object from keys and values. Raises ValueError for a duplicate key."""
    data = dict(pairs)
    if len(data) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {quoted(twice)} appears twice")
    return data


def deeper_than(depth: int, data: Any) -> bool:
    """Whether lists and objects are nested more than `depth` deep in JSON data."""
    level = [data]
    for _ in range(depth + 1):
        level = [
            inside
            for outside in level
            if isinstance(outside, dict | list)
            for inside in (outside.values() if isinstance(outside, dict) else outside)
        ]
    return bool(level)


def of_format(data: Any, name: str, file_format: str, *versions: int) -> dict[str, Any]:
    """Return the JSON object of a file with a format and one of some versions, newest first.

    Raises MalformedError for any other data. `name` is the file's name in messages.
    """
    if not isinstance(data, dict) or not is_of_format(data, file_format):
        kind = data.get("format") if isinstance(data, dict) else None
        other = f"; it is a {cut(kind)} file" if isinstance(kind, str) else ""
        raise MalformedError(f"{name} is not a {file_format} file{other}")
    found = data.get("version")
    if type(found) is not int or found not in versions:
        known_versions = " and ".join(map(str, versions))
        raise MalformedError(
            f"{name} has version {quoted(found)}; this build reads {known_versions}"
        )
    return data


def complete(
    kind: type[Kind],
    data: Any,
    name: str,
    file_format: str,
    version: int,
    *,
    called: str,
    sense: Callable[[Kind], object] | None = None,
) -> Kind:
    """Return the dataclass from the JSON data of a file with one format and version.

    `called` describes the file, and begins or ends with `record` or `case`. `sense` raises
    ValueError for inconsistent data. Raises MalformedError for any invalid data.
    """
    found = of_format(data, name, file_format, version)
    whole = {key: value for key, value in found.items() if key not in ("format", "version")}
    try:
        made = typed_json.from_json(kind, whole, "the record" if "record" in called else "the case")
        if sense is not None:
            sense(made)
    except ValueError as error:
        raise MalformedError(f"{name} is not a complete {called}: {error}") from error
    return made


CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that change what a terminal shows. Line feeds and tabs are none of them."""


def visible(data: Any) -> Any:
    """Return JSON data with the CONTROLS in its texts escaped, since commands print them."""
    if isinstance(data, str):
        return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], data)
    if isinstance(data, list):
        return [visible(item) for item in data]
    if isinstance(data, dict):
        return {visible(key): visible(item) for key, item in data.items()}
    return data


def is_of_format(data: Any, file_format: str) -> bool:
    """Whether a file's JSON data has a format."""
    return isinstance(data, dict) and data.get("format") == file_format


def load_case(path: Path) -> Case:
    """Load a case file. Raises as `read_json` and `case_of` do."""
    return case_of(read_json(path), path.name)


def case_of(data: Any, name: str) -> Case:
    """Return the case from a file's JSON data. Raises MalformedError for malformed data.

    Its subclass UnknownNameError means that the case uses a name that this build does not have.
    """
    data = of_format(data, name, FORMAT, VERSION, 3)
    if data["version"] == 3:
        data = from_version_3(data)
    if data.keys() - OPTIONAL != KEYS:
        raise MalformedError(
            f"{name}: a case must have exactly these keys: {', '.join(sorted(KEYS))}"
        )
    target, seed, violations = data["target"], data["seed"], data["violations"]
    if type(seed) is not int:
        raise MalformedError(f"{name}: {quoted(seed)} is not a valid seed for a case")
    if not isinstance(violations, list) or not all(map(names_property, violations)):
        raise MalformedError(
            f"{name}: the violations of a case must be a list of objects, each with a property"
        )
    if not isinstance(target, str | None):
        raise MalformedError(f"{name}: {quoted(target)} is not a valid target for a case")
    if target is not None:
        known("property", target, PROPERTIES)
    history = data.get("history", [])
    if not isinstance(history, list):
        raise MalformedError(f"{name}: the history of a case must be a list of schedules")
    trial = trial_from_json(data["trial"])
    check_sizes(trial)
    before = tuple(Schedule.from_data(one) for one in history)
    schedule = Schedule.from_data(data["schedule"])
    if sum(len(one.steps) for one in (*before, schedule)) > MOST_STEPS:
        raise MalformedError(
            f"{name}: a case has at most {MOST_STEPS} steps, including its history"
        )
    return Case(trial, schedule, target, seed, tuple(violations), before)


def names_property(violation: Any) -> bool:
    """Whether JSON data is an object with the name of a violated property."""
    return isinstance(violation, dict) and isinstance(violation.get("property"), str)


def from_version_3(data: Any) -> Any:
    """Convert JSON data of a case from version 3 to 4, in which some keys were renamed."""
    if isinstance(data, list):
        return [from_version_3(value) for value in data]
    if not isinstance(data, dict):
        return data
    return {RENAMED.get(key, key): from_version_3(value) for key, value in data.items()}


def check_sizes(trial: TrialConfig) -> None:
    """Raise MalformedError unless a trial's sizes are within the limits."""
    pools = trial.full_slots, trial.swa_slots
    if not all(trial.page_size <= slots <= MOST_SLOTS for slots in pools):
        raise MalformedError(
            f"the pools of a case have at least one page and at most {MOST_SLOTS} slots"
        )
    if not all(
        1 <= rows <= MOST_ROWS
        for rows in (*trial.buckets, *trial.token_buckets, max(trial.rows, 1))
    ):
        raise MalformedError(
            f"a case has at most {MOST_ROWS} rows; its buckets are between 1 and {MOST_ROWS}"
        )
