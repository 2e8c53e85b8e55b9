"""Known findings: a file in the engine's tree lists them, so that they do not fail a run.

The file is JSON:

    {"format": "paritybit-known", "version": 1, "known": [
      {"check": "wrong list", "cause": "cuda_graph_kv_indices",
       "thread": "https://github.com/example/engine/issues/1", "expires": "2027-01-31"}]}

`check` and `cause` are those of the finding's report; a cause that is not known stands there as it
is shown, such as "not known (leak, swa)". From the day after `expires` on the finding fails a run
again.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paritybit.harness.errors import MalformedError
from paritybit.launch.tally import cause_of
from paritybit.places import KNOWN_FINDINGS

FORMAT, VERSION = "paritybit-known", 1
"""What a file of known findings begins with."""


@dataclass(frozen=True)
class Entry:
    """A finding that is known: its check and cause, where it is discussed, and until when."""

    check: str
    cause: str
    thread: str
    expires: str


@dataclass(frozen=True)
class Known:
    """The known findings of a run."""

    entries: tuple[Entry, ...] = ()
    today: datetime.date = field(default_factory=datetime.date.today)

    def entry(self, check: str, cause: str) -> Entry | None:
        """Return the entry for a finding, or None if it is not known or no longer."""
        for one in self.entries:
            current = datetime.date.fromisoformat(one.expires) >= self.today
            if current and (one.check, one.cause) == (check, cause):
                return one
        return None

    def covers(self, finding: Mapping[str, Any]) -> bool:
        """Whether a finding of a journal is known."""
        return self.entry(str(finding.get("check")), cause_of(finding)) is not None


def read(path: Path) -> Known:
    """Return the known findings of a file. Raises MalformedError for any other data."""
    # These take long to import, and most runs have no such file.
    from paritybit.harness.records.case import of_format, read_json  # noqa: PLC0415
    from paritybit.harness.records.typed_json import from_json  # noqa: PLC0415

    data = of_format(read_json(path), path.name, FORMAT, VERSION)
    unknown = set(data) - {"format", "version", "known"}
    if unknown:
        raise MalformedError(f"{path.name} has unknown keys: {', '.join(sorted(unknown))}")
    try:
        entries = from_json(tuple[Entry, ...], data.get("known"), "known")
        for entry in entries:
            datetime.date.fromisoformat(entry.expires)
    except ValueError as error:
        raise MalformedError(f"{path.name} does not list known findings: {error}") from error
    return Known(entries)


def of_tree(asked: Path | None, engine: str | None) -> Known:
    """Return those of a file, or else of the source tree that is watched; none without either."""
    if asked is not None:
        return read(asked)
    held = None if engine is None else Path(engine) / KNOWN_FINDINGS
    return read(held) if held is not None and held.is_file() else Known()


def missing(known: Known, found: Sequence[tuple[str, str]]) -> tuple[Entry, ...]:
    """Return the entries of which no finding occurred; `found` has checks and causes."""
    return tuple(one for one in known.entries if (one.check, one.cause) not in found)
