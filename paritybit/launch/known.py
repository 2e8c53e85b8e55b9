"""Known findings: a file in the engine's tree lists them, so that they do not fail a run.

The file is JSON:

    {"format": "paritybit-known", "version": 1, "known": [
      {"check": "wrong list", "cause": "cuda_graph_kv_indices",
       "thread": "https://github.com/example/engine/issues/1", "expires": "2027-01-31"}]}

`check` and `cause` are those of the finding's report; a cause that is not known stands there as it
is shown, such as "not known (leak, swa)". From the day after `expires` on the finding fails a run
again.

The record of an earlier run, the baseline, makes its findings known, too. An entry that has expired
fails a run whether the baseline has the finding or not. EVERYWHERE lists what needs no file.
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
"""What a file of known findings begins with."""


@dataclass(frozen=True)
class Entry:
    """A finding that is known: its check and cause, where it is discussed, and until when."""

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
"""Findings that are known of every tree: sglang's Triton backend has this one in each release."""


@dataclass(frozen=True)
class Known:
    """The known findings of a run: those that a file lists, and those of its baseline."""

    entries: tuple[Entry, ...] = ()
    today: datetime.date = field(default_factory=datetime.date.today)
    baseline: Watched | None = None

    def where(self, check: str, cause: str) -> str | None:
        """Return where a finding is known from, or None if it is not known or no longer."""
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
        """Whether a finding of a journal is known."""
        return self.where(str(finding.get("check")), cause_of(finding)) is not None


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


def of_tree(asked: Path | None, engine: str | None, baseline: Path | None = None) -> Known:
    """Return those of a file, or else of the source tree that is watched, and of a baseline.

    Raises MalformedError for a baseline that is no record of `watch`.
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
    """Return the entries of which no finding occurred; `found` has checks and causes."""
    return tuple(one for one in known.entries if (one.check, one.cause) not in found)
