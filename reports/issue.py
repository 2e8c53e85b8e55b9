"""Issues about findings: one per engine and cause, for all runs that have it.

Each run of a cause has a row.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paritybit.harness.records.codec import encoded
from paritybit.reports.markdown import cause_lines, table, text
from paritybit.reports.sanitizer import cause_of

from paritybit.launch.case import WatchCase
from paritybit.launch.schema import WatchRecord
from paritybit.launch.words import CauseGroup, causes_of

LONGEST_TITLE = 200

LONGEST_CASE = 20_000
"""The length limit of a case in an issue. A longer one is in the artifact of its job."""


@dataclass(frozen=True)
class SeenCause:
    """A cause in a run: the record, its findings, and the case of the first finding, or None."""

    record: WatchRecord
    cause: CauseGroup
    case: WatchCase | None = None

    @property
    def engine(self) -> str:
        """The engine's package, such as sglang."""
        loaded = [process.engine for leg in self.record.legs for process in leg.processes]
        named = (self.record.engine or "").partition("==")[0]
        return next(filter(None, loaded), named or "engine")

    @property
    def where(self) -> str:
        """The release, or the source tree and its commit."""
        commit = f" at {self.record.revision[:12]}" if self.record.revision else ""
        return f"{self.record.engine or 'a command'}{commit}"

    @property
    def key(self) -> str:
        """The key for the engine and cause. It can be part of an HTML comment."""
        digest = hashlib.sha256(f"{self.engine}\n{self.cause.name}".encode()).hexdigest()
        return f"paritybit-cause-{digest[:16]}"

    @property
    def row(self) -> tuple[str, str, str]:
        """The row of this run in the issue."""
        return self.where, self.cause.count, (self.record.started or "").partition("T")[0]


@dataclass(frozen=True)
class Issue:
    """The new content of an issue. `key` identifies it."""

    key: str
    title: str
    body: str


def seen_in(record: WatchRecord, cases: Mapping[str, WatchCase]) -> Iterator[SeenCause]:
    """Yield the unknown causes of a record. `cases` are its cases by file name."""
    for cause in causes_of(record.findings):
        if cause.known is None:
            yield SeenCause(record, cause, cases.get(cause.findings[0].case or ""))


def by_cause(found: Iterable[SeenCause]) -> dict[str, list[SeenCause]]:
    """Return the causes in runs, by engine and cause."""
    groups: dict[str, list[SeenCause]] = {}
    for one in found:
        groups.setdefault(one.key, []).append(one)
    return groups


def issue_of(key: str, found: Sequence[SeenCause]) -> Issue:
    """Return the issue for a cause in some runs."""
    last = found[-1]
    body = [
        f"<!-- {key} -->",
        "`paritybit watch` found this. The issue is updated when it runs again.",
        "",
        *table(("engine", "findings", "day"), (one.row for one in found)),
        "",
        f"## In {text(last.where)}",
        "",
        *cause_lines(cause_of(last.cause, "", last.record.engine or "ENGINE")),
        *excerpt(last),
        *case_lines(last.case),
    ]
    title = f"{last.engine}: {last.cause.name}"[:LONGEST_TITLE]
    return Issue(key, title, "\n".join(body) + "\n")


def excerpt(seen: SeenCause) -> Iterator[str]:
    """Yield the lines of the engine around the one that the first finding names."""
    lines = seen.cause.findings[0].excerpt
    if lines:
        yield "\n```python"
        yield from (f"{line.number:5}  {line.text.replace('```', '')}" for line in lines)
        yield "```"


def case_lines(case: WatchCase | None) -> Iterator[str]:
    """Yield a case that is not too long."""
    data = "" if case is None else encoded(case)
    if data and len(data) <= LONGEST_CASE and "```" not in data:
        yield f"\n<details><summary>The case</summary>\n\n```json\n{data}```\n\n</details>"
