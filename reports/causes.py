"""Groups the failures of a run by cause, for the page and the terminal."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from paritybit.harness.errors import headline
from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.records.schema import BugRow, Environment, Record, Row
from paritybit.reports.blame import (
    culprit,
    lines_of,
    linked_line,
    runner_of,
    runner_words,
    to_blame,
)
from paritybit.reports.cards import Card, replay_of
from paritybit.reports.texts import Piece
from paritybit.reports.verdicts import MEANINGS, all_rows, tried

MOST_NAMED = 6
"""The number of further failures that a cause lists by name."""

MOST_LINES = 3
"""The number of lines of code that a cause lists."""

LONGEST_MESSAGE = 200
"""The length limit of a violation's message in a short answer."""

LONGEST = 10**9
"""The number of steps for a failure without a schedule, so that it comes last."""


@dataclass(frozen=True)
class Failure:
    """A trial or hunt with an unexpected result. `row` is from the record."""

    title: str
    row: Row

    @property
    def status(self) -> str:
        """The status."""
        return self.row.status

    @property
    def steps(self) -> int:
        """The number of steps in its schedule."""
        finding = self.row.finding
        return len(finding.case.schedule.steps) if finding is not None else LONGEST


@dataclass(frozen=True)
class Answer:
    """A short answer about a failure: a keyword, and text that may have links."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The answer without its links."""
        return ", ".join(piece.text for piece in self.pieces)


@dataclass(frozen=True)
class Group:
    """Failures with one cause and status, the one with the shortest schedule first.

    - `told`: sentences about the first failure: what it violates, why, and the cause.
    - `answers`: short answers: what failed, on which runner, why, where in the source.
    - `replay`: the command that replays it, or ''.
    """

    status: str
    cause: str
    failures: tuple[Failure, ...]
    told: tuple[str, ...]
    answers: tuple[Answer, ...]
    lines: tuple[SourceLine, ...]
    replay: str

    @property
    def first(self) -> Failure:
        """The failure that is described in full."""
        return self.failures[0]

    @property
    def count(self) -> str:
        """The number of trials as text."""
        many = len(self.failures)
        return "1 trial" if many == 1 else f"{many} trials"

    @property
    def others(self) -> str:
        """The names of the other failures, or ''."""
        rest = self.failures[1:]
        names = [failure.title for failure in rest[:MOST_NAMED]]
        names += [f"and {len(rest) - MOST_NAMED} more"] if len(rest) > MOST_NAMED else []
        return "; ".join(names)


@dataclass(frozen=True)
class Failed:
    """Failures of one cause, and the anchor of the first failure's card, or ''."""

    group: Group
    anchor: str


def failed(
    record: Record, clean_cards: Sequence[Card], bug_cards: Sequence[Card]
) -> Iterator[Failed]:
    """Yield the failures by cause, each with its card.

    All hunts have a card, and clean trials with a finding.
    """
    found = [row for row in record.clean if row.finding is not None]
    rows: tuple[Row, ...] = (*found, *record.bugs)
    cards = zip(rows, (*clean_cards, *bug_cards), strict=True)
    anchors = {id(row): card.anchor for row, card in cards}
    for group in groups(record):
        yield Failed(group, anchors.get(id(group.first.row), ""))


def groups(record: Record) -> tuple[Group, ...]:
    """Return the failures of a run by cause, in the order of the record."""
    found: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures(record):
        found.setdefault((failure.status, cause_of(failure.row)), []).append(failure)
    return tuple(_group(record, *cause, members) for cause, members in found.items())


def failures(record: Record) -> Iterator[Failure]:
    """Yield the failures of a run in the order of the record."""
    for row in all_rows(record):
        if not row.status.expected:
            yield Failure(title_of(row), row)


def _group(record: Record, status: str, cause: str, members: Iterable[Failure]) -> Group:
    shortest_first = tuple(sorted(members, key=lambda failure: failure.steps))
    row = shortest_first[0].row
    return Group(
        status=status,
        cause=cause,
        failures=shortest_first,
        told=tuple(told(row)),
        answers=tuple(_answers(shortest_first[0], record.environment)),
        lines=lines_of(row.finding),
        replay=replay_of(row.finding, record) if row.finding is not None else "",
    )


def title_of(row: Row) -> str:
    """Return a title for a clean trial or a hunt, with runner and model."""
    trial = row.trial
    name = row.bug if isinstance(row, BugRow) else "clean"
    overlap = ", steps overlap" if trial.overlap else ""
    return f"{name}@{trial.runner} ({trial.preset}, {trial.scheme}{overlap})"


def cause_of(row: Row) -> str:
    """Return the name of the cause with its runner. Findings with the same name share a cause."""
    if row.finding is None:
        return row.raised or "nothing was found"
    runner, explanation = runner_of(row.finding, row.trial.runner), row.finding.explanation
    if explanation is None:
        seen = row.finding.violations
        return f"{seen[0].property} on {runner}" if seen else "no violation in the second play"
    return f"{runner}: {culprit(explanation)}"


def told(row: Row) -> Iterator[str]:
    """Yield sentences about a failure: the expected property, the violations, and the cause."""
    finding = row.finding
    if isinstance(row, BugRow):
        yield MEANINGS[row.status]
    if isinstance(row, BugRow) and row.detected_by is not None:
        yield f"must be detected by {row.detected_by}"
    if finding is None:
        yield from [row.raised] if row.raised else []
        return
    tried_on = row.trial.runner
    if runner_of(finding, tried_on) != tried_on:
        yield f"fails in {runner_words(finding, tried_on)}"
    if finding.violations:
        lead = finding.violations[0]
        others = list(dict.fromkeys(one.property for one in finding.violations[1:]))
        yield f"step {lead.step} violates {lead.property}: {lead.message}"
        yield from [f"also violated: {', '.join(others)}"] if others else []
    if finding.explanation is not None:
        yield from finding.explanation.proof
        yield f"cause: {to_blame(finding.explanation, runner_of(finding, row.trial.runner))}"
    if finding.error is not None:
        yield f"the explainer failed: {headline(finding.error)}"
    if lines_of(finding):
        places = (f"{line.file}:{line.line} ({line.what})" for line in lines_of(finding))
        yield f"source: {', '.join(places)}"


def _answers(failure: Failure, environment: Environment) -> Iterator[Answer]:
    """Yield what failed, on which runner, why, and where in the source."""
    row, finding = failure.row, failure.row.finding
    yield Answer("what", (Piece(_what(failure)),))
    yield Answer("runner", (Piece(runner_words(finding, row.trial.runner)),))
    yield Answer("why", (Piece(_why(row)),))
    lines = tuple(linked_line(line, environment) for line in lines_of(finding)[:MOST_LINES])
    yield Answer("source", lines or (Piece("not known"),))


def _what(failure: Failure) -> str:
    """Describe what failed: the trial, and the violated property and step, or the status."""
    finding = failure.row.finding
    if finding is None or not finding.violations:
        wanted = failure.row.detected_by if isinstance(failure.row, BugRow) else None
        rest = f"; {wanted} must detect it" if wanted else ""
        return f"{failure.title}: {failure.status}{rest}"
    lead = finding.violations[0]
    message = lead.message
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]} …"
    return f"{failure.title}: step {lead.step} violates {lead.property}: {message}"


def _why(row: Row) -> str:
    """Describe the cause as far as it is known."""
    finding = row.finding
    if finding is not None and finding.explanation is not None:
        return to_blame(finding.explanation, runner_of(finding, row.trial.runner))
    if finding is not None and finding.error is not None:
        return f"not known: the explainer failed: {headline(finding.error)}"
    if row.error is not None:
        return row.raised
    if finding is not None:
        return "not known: no cause was found"
    return f"no violation in {row.schedules:,} schedules and {row.replays:,} replays"


def run_answers(record: Record, group: Group) -> Iterator[Answer]:
    """Yield the short answers about a cause of a red run, including replay and other failures."""
    yield from group.answers
    yield Answer(
        "replay", (Piece(group.replay or f"no case was saved; run again: {record.command}"),)
    )
    yield Answer("tried", (Piece(tried(record)),))
