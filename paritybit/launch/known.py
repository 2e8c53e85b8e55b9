"""Known findings: a file in the engine's tree lists them, so that they do not fail a run.

The file is JSON:

    {"format": "paritybit-known", "version": 1, "known": [
      {"check": "wrong list", "cause": "cuda_graph_kv_indices",
       "thread": "https://github.com/example/engine/issues/1", "expires": "2027-01-31"}]}

`check` and `cause` are copied from the report of the finding. An unknown cause is written as the
report shows it, such as "not known (leak, swa)". From the day after `expires`, the finding fails a
run again.

The findings in a baseline, the record of an earlier run, are known, too. However, a finding with an
expired entry fails a run even if the baseline has it. EVERYWHERE lists findings that are known
without a file.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paritybit.harness.errors import MalformedError
from paritybit.launch.schema import IN_BASELINE, Watched
from paritybit.launch.tally import cause_of
from paritybit.places import KNOWN_FINDINGS

FORMAT, VERSION = "paritybit-known", 1
"""The format and version in a file of known findings."""


@dataclass(frozen=True)
class Entry:
    """A known finding: its check and cause, its public thread, and its last valid day."""

    check: str
    cause: str
    thread: str
    expires: str


EVERYWHERE = (
    Entry(
        "company",
        "a prefill reads one key more than decoding",
        "https://github.com/sgl-project/sglang/pull/32087",
        "2027-12-31",
    ),
)
"""Findings that are known in every tree: each release of sglang has this one (Triton backend)."""


@dataclass(frozen=True)
class Known:
    """The known findings of a run: the entries of a file, and the findings of a baseline."""

    entries: tuple[Entry, ...] = ()
    today: datetime.date = field(default_factory=datetime.date.today)
    baseline: Watched | None = None

    def where(self, check: str, cause: str) -> str | None:
        """Return where a finding is known from, or None if it is unknown or has expired."""
        listed = [
            one for one in (*EVERYWHERE, *self.entries) if (one.check, one.cause) == (check, cause)
        ]
        for one in listed:
            if datetime.date.fromisoformat(one.expires) >= self.today:
                return one.thread
        if listed or self.baseline is None:
            return None
        earlier = {(one.check, one.group_of) for one in self.baseline.findings}
        return IN_BASELINE if (check, cause) in earlier else None

    def covers(self, finding: Mapping[str, Any]) -> bool:
        """Return whether a finding in a journal is known."""
        return self.where(str(finding.get("check")), cause_of(finding)) is not None


def read(path: Path) -> Known:
    """Return the known findings in a file. Raises MalformedError for malformed data."""
    # These modules take long to import, and most runs have no such file.
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


def of_tree(asked: Path | None, engine: str | None, baseline: Path | None = None) -> Known:
    """Return the known findings in a file and in a baseline.

    Without a file, the file in the watched source tree is read, if there is one. Raises
    MalformedError for a baseline that is not a record of `watch`.
    """
    held = asked if asked is not None or engine is None else Path(engine) / KNOWN_FINDINGS
    there = held is not None and (asked is not None or held.is_file())
    known = read(held) if held is not None and there else Known()
    return known if baseline is None else replace(known, baseline=earlier(baseline))


def earlier(path: Path) -> Watched:
    """Return the record of an earlier run. Raises MalformedError for any other file."""
    from paritybit.harness.records.case import read_json  # noqa: PLC0415
    from paritybit.launch.reading import record_of  # noqa: PLC0415

    return record_of(read_json(path), path.name)


def missing(known: Known, found: Sequence[tuple[str, str]]) -> tuple[Entry, ...]:
    """Return the entries without a finding. `found` has the checks and causes of findings."""
    return tuple(one for one in known.entries if (one.check, one.cause) not in found)
