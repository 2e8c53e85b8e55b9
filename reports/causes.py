"""What failed in a run, grouped by what is to blame: said once, for the page and the terminal.

Knows the record. Does not know markup or a console.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.explain.facts import Cause
from harness.records.schema import BugRow, CleanRow, Record, TrialRow
from reports.cards import STATUSES, Card

MOST_NAMED = 6
"""Failures of one cause that are named beside the one that is told at length."""

LONGEST = 10**9
"""More steps than a schedule has: what has none comes last."""


@dataclass(frozen=True)
class Failure:
    """A trial or hunt that did not end as it should. `row` is the record's."""

    title: str
    row: CleanRow | BugRow

    @property
    def status(self) -> str:
        """How it ended."""
        return self.row.status

    @property
    def steps(self) -> int:
        """How many steps show it."""
        finding = self.row.finding
        return len(finding.schedule.steps) if finding is not None else LONGEST


@dataclass(frozen=True)
class Group:
    """Failures of one cause that ended alike, the one with the shortest schedule first.

    `told` are sentences about that one: what it violates, why, and who is to blame. `replay` is
    the command that replays it, '' where there is none.
    """

    status: str
    cause: str
    failures: tuple[Failure, ...]
    told: tuple[str, ...]
    replay: str

    @property
    def first(self) -> Failure:
        """The failure that is told at length."""
        return self.failures[0]

    @property
    def others(self) -> str:
        """The other failures by name, '' if there are none."""
        rest = self.failures[1:]
        names = [failure.title for failure in rest[:MOST_NAMED]]
        names += [f"and {len(rest) - MOST_NAMED} more"] if len(rest) > MOST_NAMED else []
        return "; ".join(names)


@dataclass(frozen=True)
class Failed:
    """Failures of one cause, and the card of the one that is told at length, '' without one."""

    group: Group
    anchor: str


def failed(
    record: Record, clean_cards: Sequence[Card], bug_cards: Sequence[Card]
) -> Iterator[Failed]:
    """Yield what failed by its cause, each with the card that shows it.

    Of clean trials those with a finding have a card, and every hunt has one.
    """
    found = [row for row in record.clean if row.finding is not None]
    rows: tuple[TrialRow, ...] = (*found, *record.bugs)
    cards = zip(rows, (*clean_cards, *bug_cards), strict=True)
    anchors = {id(row): card.anchor for row, card in cards}
    for group in groups(record):
        yield Failed(group, anchors.get(id(group.first.row), ""))


def groups(record: Record) -> tuple[Group, ...]:
    """Return what of a run is not as it should be, by its cause, in the order of the record."""
    found: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures(record):
        found.setdefault((failure.status, cause_of(failure.row)), []).append(failure)
    return tuple(_group(*cause, members) for cause, members in found.items())


def failures(record: Record) -> Iterator[Failure]:
    """Yield what of a run is not as it should be, in the order of its record."""
    rows: tuple[CleanRow | BugRow, ...] = (*record.clean, *record.bugs)
    for row in rows:
        if not (row.status == "green" or STATUSES.get(row.status, (False, ""))[0]):
            yield Failure(title_of(row), row)


def _group(status: str, cause: str, members: Iterable[Failure]) -> Group:
    shortest_first = tuple(sorted(members, key=lambda failure: failure.steps))
    row = shortest_first[0].row
    replay = row.finding.reproduce if row.finding is not None else ""
    return Group(status, cause, shortest_first, tuple(told(row)), replay)


def title_of(row: CleanRow | BugRow) -> str:
    """Name a clean trial or a hunt by what it tried, on which runner and model."""
    trial = row.trial
    name = row.bug if isinstance(row, BugRow) else "clean"
    overlap = ", steps overlap" if trial.overlap else ""
    return f"{name}@{trial.runner} ({trial.preset}, {trial.scheme}, {row.source}{overlap})"


def cause_of(row: TrialRow) -> str:
    """Name what is to blame, so that findings of one cause have one name."""
    if row.finding is None:
        return _headline(row.error) if row.error else "nothing was found"
    explanation = row.finding.explanation
    if explanation is None:
        seen = row.finding.violations
        return f"{seen[0].property} on {row.trial.runner}" if seen else "nothing is violated again"
    where = explanation.at.runner or f"an eager forward beside {row.trial.runner}"
    return f"{where}: {next(_elements(explanation.cause), explanation.cause.blame)}"


def _elements(cause: Cause) -> Iterator[str]:
    """Yield the buffer, table, code or argument that a cause names, the nearest first."""
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


def told(row: CleanRow | BugRow) -> Iterator[str]:
    """Yield what is said of one failure: what must see it, what is violated, why, and by whom."""
    finding = row.finding
    if isinstance(row, BugRow):
        yield STATUSES[row.status][1]
    if isinstance(row, BugRow) and row.detected_by is not None:
        yield f"must be seen by {row.detected_by}"
    if finding is None:
        yield from [_headline(row.error)] if row.error else []
        return
    if finding.violations:
        lead = finding.violations[0]
        others = list(dict.fromkeys(one.property for one in finding.violations[1:]))
        yield f"step {lead.step} violates {lead.property}: {lead.message}"
        yield from [f"violated as well: {', '.join(others)}"] if others else []
    if finding.explanation is not None:
        yield from finding.explanation.proof
        where = finding.explanation.at.runner or "an eager forward"
        yield f"to blame: {finding.explanation.cause.blame}, in {where}"
    if finding.error is not None:
        yield f"the explainer failed: {_headline(finding.error)}"


def _headline(error: str) -> str:
    """Return the line of a traceback that says what was raised."""
    return error.strip().splitlines()[-1]
