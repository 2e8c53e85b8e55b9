"""What failed, on the terminal: one block for each cause, with why it is and how to replay it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console
from rich.markup import escape

from harness.campaigns.task import GOOD
from harness.explain.facts import Cause, Explanation
from harness.lockstep.tracebacks import headline
from harness.records.schema import BugRow, CleanRow, Finding, Record, TrialRow

MOST_NAMED = 6
"""Findings of one cause that are named, beside the one that is told at length."""

INDENT = " " * 3
REPLAY = "replay: "


@dataclass(frozen=True)
class Failure:
    """One trial or hunt that did not end as it should, and in short what is to blame for it."""

    title: str
    status: str
    cause: str
    row: TrialRow
    seen_as: str | None = None


def failures(record: Record) -> Iterator[Failure]:
    """Yield what of a run is not as it should be, in the order of its record."""
    rows: tuple[CleanRow | BugRow, ...] = (*record.clean, *record.bugs)
    for row in rows:
        if row.status not in GOOD:
            yield Failure(title_of(row), row.status, cause_of(row), row, expected_of(row))


def title_of(row: CleanRow | BugRow) -> str:
    """Name a clean trial or a hunt by what it tried, on which runner and model."""
    trial = row.trial
    name = row.bug if isinstance(row, BugRow) else "clean"
    overlap = ", steps overlap" if trial.overlap else ""
    return f"{name}@{trial.runner} ({trial.preset}, {trial.scheme}, {row.source}{overlap})"


def expected_of(row: CleanRow | BugRow) -> str | None:
    """Return the property that must see the bug of a hunt, None of a clean trial."""
    return row.detected_by if isinstance(row, BugRow) else None


def cause_of(row: TrialRow) -> str:
    """Name what is to blame, so that findings of one cause have one name."""
    if row.finding is None:
        return headline(row.error) if row.error else "nothing was found"
    explanation = row.finding.explanation
    if explanation is None:
        seen = row.finding.violations
        return f"{seen[0].property} on {row.trial.runner}" if seen else "nothing is violated again"
    where = explanation.at.runner or f"an eager forward beside {row.trial.runner}"
    return f"{where}: {element_of(explanation.cause) or explanation.cause.blame}"


def element_of(cause: Cause) -> str | None:
    """Name the buffer, table, place in the code or argument that is to blame; None if none is."""
    return next(_elements(cause), None)


def _elements(cause: Cause) -> Iterator[str]:
    """Yield what a cause names, the nearest to the mistake first."""
    if cause.site is not None:
        yield f"{cause.site.function} in {cause.site.file}"
    if cause.index is not None and cause.index.buffer is not None:
        yield f"static input {cause.index.buffer}"
    if cause.cell is not None:
        yield f"table {cause.cell.table}"
    if cause.kept is not None:
        yield f"static output {cause.kept.output}, kept as {cause.kept.what}"
    if cause.baked is not None:
        yield f"{cause.baked.argument or cause.baked.op}, baked in at the capture"
    if cause.given is not None:
        yield cause.given.what.partition("[")[0]
    if cause.held is not None:
        yield cause.held.what


def by_cause(found: Iterable[Failure]) -> dict[tuple[str, str], list[Failure]]:
    """Return failures that have one cause and ended alike together, shortest schedule first."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in found:
        groups.setdefault((failure.status, failure.cause), []).append(failure)
    return {cause: sorted(group, key=steps_of) for cause, group in groups.items()}


def steps_of(failure: Failure) -> int:
    """Return how many steps show a failure; a failure without a schedule comes last."""
    finding = failure.row.finding
    return len(finding.schedule.steps) if finding is not None else 10**9


def print_failures(console: Console, record: Record) -> None:
    """Print each cause of what failed: its shortest finding at length, the others by name."""
    groups = by_cause(failures(record))
    if not groups:
        return
    count, causes = sum(map(len, groups.values())), len(groups)
    console.print(f"\n[bold]{count} not as expected, of {causes} cause{'s' * (causes > 1)}[/]")
    for number, ((status, cause), group) in enumerate(groups.items(), start=1):
        console.print(f"\n{number}. [bold red]{escape(status)}[/]: [bold]{escape(cause)}[/]")
        for line in lines_of(group):
            put(console, line)


def put(console: Console, line: str) -> None:
    """Print a line, indented and folded between words; a command stays whole, to be copied."""
    width = max(console.width - len(INDENT), len(INDENT))
    folded = [line] if line.startswith(REPLAY) else wrap(line, width, break_long_words=False)
    for part in folded:
        console.print(f"{INDENT}{part}", soft_wrap=True, highlight=False, markup=False)


def lines_of(group: Sequence[Failure]) -> Iterator[str]:
    """Yield what is said of failures of one cause: what, where, why, how to replay it, who else."""
    first = group[0]
    yield first.title
    if first.seen_as is not None:
        yield f"must be seen by {first.seen_as}"
    if first.row.finding is not None:
        yield from told(first.row.finding)
    elif first.row.error is not None:
        yield headline(first.row.error)
    if len(group) > 1:
        names = [failure.title for failure in group[1 : MOST_NAMED + 1]]
        more = len(group) - 1 - len(names)
        yield f"also: {'; '.join(names)}{f'; and {more} more' if more else ''}"


def told(finding: Finding) -> Iterator[str]:
    """Yield what a finding violates, why, and how to replay it."""
    if finding.violations:
        lead = finding.violations[0]
        others = list(dict.fromkeys(one.property for one in finding.violations[1:]))
        yield f"step {lead.step} violates {lead.property}: {lead.message}"
        if others:
            yield f"violated as well: {', '.join(others)}"
    if finding.explanation is not None:
        yield from sentences(finding.explanation)
    if finding.error is not None:
        yield f"the explainer failed: {headline(finding.error)}"
    yield f"{REPLAY}{finding.reproduce}"


def sentences(explanation: Explanation) -> Iterator[str]:
    """Yield the sentences that say why, and who is to blame."""
    yield from explanation.proof
    where = explanation.at.runner or "an eager forward"
    yield f"to blame: {explanation.cause.blame}, in {where}"
