"""Cards: one hunt of a bug, or one finding in a clean trial, in full.

This module has no markup and judges nothing. Statuses come from the record.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paritybit.harness.checks.property import Violation
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import file_name
from paritybit.harness.records.codec import encoded
from paritybit.harness.records.schema import BugRow, Record, Row
from paritybit.harness.records.schema import Finding as RecordedFinding
from paritybit.reports.blame import lines_of, linked_line, runner_of, runner_words
from paritybit.reports.drawings.bit_patterns import Comparison, compare
from paritybit.reports.drawings.timeline import Timeline, lay_out
from paritybit.reports.explanation import ExplanationView, describe
from paritybit.reports.texts import (
    Fact,
    Piece,
    anchors,
    duration,
    linked,
    or_dash,
    value_text,
    words,
)
from paritybit.reports.verdicts import MEANINGS

ROOM = 6400
"""The maximum number of boxes in all time lines of a page. It keeps the page below 1 MB."""


@dataclass(frozen=True)
class Seen:
    """One violation, and its two bit patterns if it has them."""

    property: str
    step: int
    message: str
    comparison: Comparison | None
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Finding:
    """One counterexample. `lead` is the violation to read first.

    `error` is the traceback of an explainer that failed, '' for none.
    """

    anchor: str
    lead: Seen
    others: tuple[Seen, ...]
    violated: bool
    explanation: ExplanationView | None
    error: str
    timeline: Timeline | None
    case: str
    case_file: str
    reproduce: str


@dataclass(frozen=True)
class Card:
    """One hunt of a bug, or one finding in a clean trial, in full.

    `runner` was under test. `fails_in` is the runner whose forward fails. `where` describes it if
    it is another runner, else it is ''.
    """

    anchor: str
    title: str
    bug: str
    runner: str
    fails_in: str
    where: str
    status: str
    meaning: str
    error: str
    sound: bool
    mechanism: str
    facts: tuple[Fact, ...]
    sources: tuple[Piece, ...]
    expected: str
    unaffected: str
    threads: tuple[Piece, ...]
    counts: tuple[Fact, ...]
    finding: Finding | None

    @property
    def violated(self) -> tuple[str, ...]:
        """The properties that the finding violates, starting with the one to read first."""
        if self.finding is None or not self.finding.violated:
            return ()
        seen = (self.finding.lead, *self.finding.others)
        return tuple(dict.fromkeys(violation.property for violation in seen))


@dataclass(frozen=True)
class Filter:
    """A filter for findings: its name and its values."""

    name: str
    values: tuple[str, ...]


def bug_cards(record: Record) -> Iterator[Card]:
    """Yield a card for each hunt of a bug, in the record's order."""
    names = anchors(f"bug-{bug.bug}-{bug.trial.runner}" for bug in record.bugs)
    for bug, anchor in zip(record.bugs, names, strict=True):
        yield Card(
            anchor=anchor,
            title=f"{bug.bug}@{bug.trial.runner}",
            bug=bug.bug,
            runner=bug.trial.runner,
            fails_in=runner_of(bug.finding, bug.trial.runner),
            where=_elsewhere(bug.finding, bug.trial.runner),
            status=bug.status,
            meaning=MEANINGS[bug.status],
            error=bug.error or "",
            sound=bug.status.expected,
            mechanism=bug.mechanism,
            facts=tuple(_settings(bug.trial)),
            sources=tuple(_sources(bug.finding, record)),
            expected=bug.detected_by or "",
            unaffected=bug.unaffected or "",
            threads=linked(bug.thread),
            counts=tuple(_bug_counts(bug)),
            finding=_finding(record, bug, anchor, bug.detected_by),
        )


def _bug_counts(bug: BugRow) -> Iterator[Fact]:
    yield Fact("schedules to detection", or_dash(bug.drawn))
    yield from _reach(bug)
    yield from _counts(bug)
    if bug.capture_warnings:
        yield Fact("warnings at capture", str(bug.capture_warnings))


def _reach(bug: BugRow) -> Iterator[Fact]:
    """Yield how far the bug got in the observed schedules: reached, then triggered."""
    reach = bug.reach
    if reach is None:
        return
    for name, count, place in (
        ("reached", reach.reached, reach.reached_at),
        ("triggered", reach.triggered, reach.triggered_at),
    ):
        first = "" if place is None else f", first at step {place}"
        yield Fact(name, f"in {count} of {reach.schedules} observed schedules{first}")


def _counts(hunt: Row) -> Iterator[Fact]:
    yield Fact("schedules", f"{hunt.schedules:,}")
    yield Fact("steps", f"{hunt.steps:,}")
    yield Fact("replays", f"{hunt.replays:,}")
    yield Fact("padded replays", f"{hunt.padded_replays:,}")
    yield Fact("time taken", duration(hunt.seconds))


def clean_cards(record: Record) -> Iterator[Card]:
    """Yield a card for each clean trial that has a finding, in the record's order."""
    found = [trial for trial in record.clean if trial.finding is not None]
    names = anchors(setting(trial) for trial in found)
    for trial, anchor in zip(found, names, strict=True):
        yield Card(
            anchor=anchor,
            title=setting(trial),
            bug="clean",
            runner=trial.trial.runner,
            fails_in=runner_of(trial.finding, trial.trial.runner),
            where=_elsewhere(trial.finding, trial.trial.runner),
            status=trial.status,
            meaning="The unchanged engine must have no findings.",
            error=trial.error or "",
            sound=False,
            mechanism="",
            facts=tuple(_settings(trial.trial)),
            sources=tuple(_sources(trial.finding, record)),
            expected="",
            unaffected="",
            threads=(),
            counts=tuple(_counts(trial)),
            finding=_finding(record, trial, anchor, None),
        )


def filters(cards: Sequence[Card]) -> Iterator[Filter]:
    """Yield the filters with several values. A value that all cards share filters nothing."""
    values: Mapping[str, Iterable[str]] = {
        "bug": (card.bug for card in cards),
        "runner": (card.runner for card in cards),
        "fails-in": (card.fails_in for card in cards),
        "property": (name for card in cards for name in card.violated),
        "outcome": (card.status for card in cards),
    }
    for name, of_cards in values.items():
        different = tuple(dict.fromkeys(of_cards))
        if len(different) > 1:
            yield Filter(name, different)


def _elsewhere(finding: RecordedFinding | None, tried: str) -> str:
    """Describe the runner whose forward fails, or return '' if it is the runner under test."""
    return "" if runner_of(finding, tried) == tried else runner_words(finding, tried)


def _sources(finding: RecordedFinding | None, record: Record) -> Iterator[Piece]:
    """Yield the lines of code for a finding, with their text."""
    for line in lines_of(finding):
        piece = linked_line(line, record.environment)
        yield Piece(f"{piece.text}, {line.what}", piece.href)


def setting(row: Row) -> str:
    """Return a name for a clean trial that is different from the others."""
    trial = row.trial
    return (
        f"clean {trial.runner}, {trial.preset}, {trial.scheme},"
        f" page size {trial.page_size}, {trial.dtype}"
        f"{', overlapping steps' if trial.overlap else ''}"
    )


def _settings(trial: TrialConfig) -> Iterator[Fact]:
    yield Fact("runner", trial.runner)
    yield Fact("preset", trial.preset)
    yield Fact("location scheme", trial.scheme)
    yield Fact("dtype", trial.dtype)
    yield Fact("device", trial.device)
    yield Fact("page size", str(trial.page_size))
    yield Fact("slots", f"{trial.full_slots} full, {trial.swa_slots} SWA")
    if trial.topk == 1:
        yield Fact("topk", str(trial.topk))
    yield Fact("request rows", str(trial.rows))
    yield Fact("buckets", words(trial.buckets))
    yield Fact("token buckets", words(trial.token_buckets))
    yield Fact("steps overlap", "yes" if trial.overlap else "no")


def _finding(record: Record, row: Row, anchor: str, expected: str | None) -> Finding | None:
    if row.finding is None:
        return None
    runner = runner_of(row.finding, row.trial.runner)
    paddings = record.paddings.get(f"{runner}, {row.trial.scheme}", {})
    return finding_view(
        row.finding, anchor, expected, _room(record), replay_of(row.finding, record), paddings
    )


def replay_of(finding: RecordedFinding, record: Record) -> str:
    """Return the command that replays a finding."""
    return shlex.join(["paritybit", "replay", f"{record.cases}/{file_name(finding.case)}"])


def finding_view(
    finding: RecordedFinding,
    anchor: str,
    expected: str | None,
    room: int,
    reproduce: str,
    paddings: Mapping[str, str],
) -> Finding:
    """Return a counterexample.

    `expected` is the property to show first. The time line has at most `room` boxes. `reproduce` is
    the command that replays it. `paddings` are those of the right contract.
    """
    seen = [_seen(violation) for violation in finding.violations]
    nothing = Seen(
        "nothing", 0, "No property was violated when the schedule was played again.", None, ()
    )
    lead = next((other for other in seen if other.property == expected), [*seen, nothing][0])
    return Finding(
        anchor=anchor,
        lead=lead,
        others=tuple(other for other in seen if other is not lead),
        violated=bool(seen),
        explanation=describe(finding.explanation, finding.timeline, paddings),
        error=finding.error or "",
        timeline=lay_out(finding.timeline, room),
        case=encoded(finding.case),
        case_file=file_name(finding.case),
        reproduce=reproduce,
    )


def _seen(violation: Violation) -> Seen:
    comparison = compare(violation.property, violation.where)
    compared = ("eager_bits", "graph_bits") if comparison is not None else ()
    return Seen(
        property=violation.property,
        step=violation.step,
        message=violation.message,
        comparison=comparison,
        facts=tuple(
            Fact(name.replace("_", " "), value_text(value))
            for name, value in violation.where.items()
            if name not in compared
        ),
    )


def _room(record: Record) -> int:
    """Return the maximum number of boxes per time line."""
    hunts = (*record.clean, *record.bugs)
    return ROOM // max(10, sum(hunt.finding is not None for hunt in hunts))
