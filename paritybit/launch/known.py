"""Known findings: a file in the engine's tree lists them, so that they do not fail a run.

The file is JSON:

    {"format": "paritybit-known", "version": 1, "known": [
      {"check": "wrong list", "cause": "cuda_graph_kv_indices",
       "thread": "https://github.com/example/engine/issues/1", "expires": "2027-01-31"}]}

`check` and `cause` are copied from the report of the finding, also an unknown cause such as "not
known (leak, swa)". From the day after `expires`, the finding fails a run again, even if it is in
the baseline, the record of an earlier run, whose findings are known, too.
"""

import datetime
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from paritybit.harness.records.codec import File, load
from paritybit.launch.schema import IN_BASELINE, RecordedFinding, WatchRecord
from paritybit.places import KNOWN_FINDINGS


class KnownFinding(msgspec.Struct, frozen=True):
    """A known finding: its check and cause, its public thread, and its last valid day."""

    check: str
    cause: str
    thread: str
    expires: str

    def __post_init__(self) -> None:
        """Raise ValueError unless `expires` is a day."""
        datetime.date.fromisoformat(self.expires)


class Listed(File, frozen=True, tag="paritybit-known"):
    """A file of known findings."""

    known: tuple[KnownFinding, ...]
    version: Literal[1] = 1


@dataclass(frozen=True)
class Known:
    """The known findings of a run: the entries of a file, and the findings of a baseline."""

    entries: tuple[KnownFinding, ...] = ()
    today: datetime.date = field(default_factory=datetime.date.today)
    baseline: WatchRecord | None = None

    def where(self, finding: RecordedFinding) -> str | None:
        """Return where a finding is known from, or None if it is unknown or has expired."""
        check, cause = finding.check, finding.cause_name
        listed = [one for one in self.entries if (one.check, one.cause) == (check, cause)]
        for one in listed:
            if datetime.date.fromisoformat(one.expires) >= self.today:
                return one.thread
        if listed or self.baseline is None:
            return None
        earlier = {(one.check, one.cause_name) for one in self.baseline.findings}
        return IN_BASELINE if (check, cause) in earlier else None


def known_findings(file: Path | None, engine: str | None, baseline: Path | None = None) -> Known:
    """Return the known findings in a file, or else in that of a source tree, and in a baseline.

    Raises MalformedError for a file of another kind.
    """
    with suppress(OSError):  # The name of the engine may be no path.
        if file is None and engine is not None and (Path(engine) / KNOWN_FINDINGS).is_file():
            file = Path(engine) / KNOWN_FINDINGS
    known = Known() if file is None else Known(load(file, Listed).known)
    return known if baseline is None else replace(known, baseline=load(baseline, WatchRecord))
