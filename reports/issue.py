"""Issues about findings: one for each cause of a run that is not known."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paritybit.harness.records.codec import encoded
from paritybit.reports.markdown import cause_lines
from paritybit.reports.sanitizer import cause_of, engine_of

from paritybit.launch.case import WatchCase
from paritybit.launch.schema import RecordedFinding, WatchRecord
from paritybit.launch.words import causes_of

LONGEST_TITLE = 200

LONGEST_CASE = 20_000
"""The length limit of a case in an issue. A longer one is in the artifact of its job."""


@dataclass(frozen=True)
class Issue:
    """An issue about a cause.

    - `key`: equal for all runs of the engine with this cause. It can be part of an HTML comment.
    - `row`: what was run, its findings and the day.
    """

    key: str
    title: str
    row: tuple[str, str, str]
    body: str


def issues_of(record: WatchRecord, cases: Mapping[str, WatchCase]) -> Iterator[Issue]:
    """Yield an issue for each cause that is not known. `cases` are the run's by file name."""
    engine = engine_of(record)
    commit = f" at {record.revision[:12]}" if record.revision else ""
    run = f"{record.engine or 'a command'}{commit}"
    day = (record.started or "").partition("T")[0]
    for cause in causes_of(record.findings):
        if cause.known is not None:
            continue
        first = cause.findings[0]
        digest = hashlib.sha256(f"{engine}\n{cause.name}".encode()).hexdigest()
        lines = [
            *cause_lines(cause_of(cause, "", record.engine or "ENGINE")),
            *excerpt(first),
            *case_lines(cases.get(first.case or "")),
        ]
        yield Issue(
            key=f"paritybit-cause-{digest[:16]}",
            title=f"{engine}: {cause.name}"[:LONGEST_TITLE],
            row=(run, cause.count, day),
            body="\n".join(lines) + "\n",
        )


def excerpt(finding: RecordedFinding) -> Iterator[str]:
    """Yield the lines of the engine around the one that a finding names."""
    if finding.excerpt:
        yield "\n```python"
        yield from (f"{one.number:5}  {one.text.replace('```', '')}" for one in finding.excerpt)
        yield "```"


def case_lines(case: WatchCase | None) -> Iterator[str]:
    """Yield a case that is not too long."""
    data = "" if case is None else encoded(case)
    if data and len(data) <= LONGEST_CASE and "```" not in data:
        yield f"\n<details><summary>The case</summary>\n\n```json\n{data}```\n\n</details>"
