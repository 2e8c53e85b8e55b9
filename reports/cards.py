"""Cards: one hunt of one bug, or one finding on the clean subject, at full length.

Knows the record's rows of hunts and findings. Does not know markup, and judges
nothing: a status is the record's, only explained here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.records.schema import (
    BugRow,
    CleanRow,
    EngineCounterexample,
    Record,
    TrialRow,
    TrialSettings,
    Violation,
)
from harness.records.schema import Finding as RecordedFinding
from reports.drawings.bit_patterns import Comparison, compare
from reports.drawings.timeline import Timeline, lay_out
from reports.explanation import ExplanationView, describe
from reports.texts import Fact, Piece, anchors, duration, linked, or_dash, value_text, words

STATUSES: Mapping[str, tuple[bool, str]] = {
    "caught": (True, "The property that must detect it did."),
    "clean is red too": (False, "What showed it shows on the clean build as well."),
    "not reproduced": (False, "Caught in the hunt, but not when its shrunk schedule was played."),
    "undeclared state": (
        False,
        "It depends on state that no one declared: a fresh process does not show it.",
    ),
    "failed": (False, "An error ended it: nothing is proved."),
    "device lost": (False, "A step ended the device's context; what follows ran in a new process."),
    "unaffected": (True, "It shows nowhere, as expected: it cannot affect this runner."),
    "missed": (False, "No schedule showed it."),
    "wrong property": (False, "Seen, but not by the property that must detect it."),
    "affected after all": (False, "It was expected to show nowhere, yet it was seen."),
    "vacuous": (False, "No replay could have shown it, so nothing was proved."),
}
"""Of each status of a hunt: whether it is as expected, and what it means."""

ROOM = 6400
"""Boxes in all time lines of a page together: what keeps it below a megabyte."""


@dataclass(frozen=True)
class Seen:
    """One violation, and the two bit patterns if it names them."""

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
    """One hunt of one bug, or one finding on the clean subject, at full length."""

    anchor: str
    title: str
    bug: str
    runner: str
    source: str
    status: str
    meaning: str
    error: str
    sound: bool
    mechanism: str
    facts: tuple[Fact, ...]
    expected: str
    unaffected: str
    threads: tuple[Piece, ...]
    counts: tuple[Fact, ...]
    finding: Finding | None

    @property
    def violated(self) -> tuple[str, ...]:
        """The properties that the finding violates, the one to read first first."""
        if self.finding is None or not self.finding.violated:
            return ()
        seen = (self.finding.lead, *self.finding.others)
        return tuple(dict.fromkeys(violation.property for violation in seen))


def bug_cards(record: Record) -> Iterator[Card]:
    """Yield a card for each hunt of a bug, in the record's order."""
    names = anchors(f"bug-{bug.bug}-{bug.runner}-{bug.source}" for bug in record.bugs)
    for bug, anchor in zip(record.bugs, names, strict=True):
        sound, meaning = STATUSES[bug.status]
        yield Card(
            anchor=anchor,
            title=f"{bug.bug}@{bug.runner}",
            bug=bug.bug,
            runner=bug.runner,
            source=bug.source,
            status=bug.status,
            meaning=meaning,
            error=bug.error or "",
            sound=sound,
            mechanism=bug.mechanism,
            facts=tuple(_settings(bug.trial)),
            expected=bug.detected_by or "",
            unaffected=bug.unaffected or "",
            threads=linked(bug.thread),
            counts=tuple(_bug_counts(bug)),
            finding=_finding(bug, anchor, bug.detected_by, _room(record)),
        )


def _bug_counts(bug: BugRow) -> Iterator[Fact]:
    yield Fact("schedules to detection", or_dash(bug.schedules_to_detection))
    yield from _reach(bug)
    yield from _counts(bug)
    if bug.capture_warnings:
        yield Fact("warnings at capture", str(bug.capture_warnings))


def _reach(bug: BugRow) -> Iterator[Fact]:
    """Yield how far the bug got in the schedules that were followed: reached, then triggered."""
    reach = bug.reach
    if reach is None:
        return
    for name, count, place in (
        ("reached", reach.reached, reach.reached_at),
        ("triggered", reach.triggered, reach.triggered_at),
    ):
        first = "" if place is None else f", first at step {place}"
        yield Fact(name, f"in {count} of {reach.schedules} schedules followed{first}")


def _counts(hunt: TrialRow) -> Iterator[Fact]:
    yield Fact("schedules", f"{hunt.schedules:,}")
    yield Fact("steps", f"{hunt.steps:,}")
    yield Fact("replays", f"{hunt.replays:,}")
    yield Fact("padded replays", f"{hunt.padded_replays:,}")
    yield Fact("time taken", duration(hunt.seconds))


def clean_cards(record: Record) -> Iterator[Card]:
    """Yield a card for each clean trial that has a finding, in the record's order."""
    found = [trial for trial in record.clean if trial.finding is not None]
    names = anchors(f"{setting(trial)}-{trial.source}" for trial in found)
    for trial, anchor in zip(found, names, strict=True):
        yield Card(
            anchor=anchor,
            title=setting(trial),
            bug="clean",
            runner=trial.trial.runner,
            source=trial.source,
            status="violated",
            meaning="Nothing may be found on the clean subject.",
            error=trial.error or "",
            sound=False,
            mechanism="",
            facts=tuple(_settings(trial.trial)),
            expected="",
            unaffected="",
            threads=(),
            counts=tuple(_counts(trial)),
            finding=_finding(trial, anchor, None, _room(record)),
        )


def engine_cards(counterexamples: Sequence[EngineCounterexample]) -> Iterator[Card]:
    """Yield a card for each counterexample of an engine's record, in its order."""
    titles = [
        f"{one.finding.case.target} of {one.trial.runner}, {one.trial.preset}"
        for one in counterexamples
    ]
    for title, anchor, one in zip(titles, anchors(titles), counterexamples, strict=True):
        room = ROOM // len(titles)
        yield Card(
            anchor=anchor,
            title=title,
            bug="the engine",
            runner=one.trial.runner,
            source="shrunk",
            status="violated",
            meaning="What the engine's own replay does differs.",
            error="",
            sound=False,
            mechanism="",
            facts=tuple(_settings(one.trial)),
            expected="",
            unaffected="",
            threads=(),
            counts=(),
            finding=finding_view(one.finding, one.case, anchor, one.finding.case.target, room),
        )


def setting(row: CleanRow) -> str:
    """Name a clean trial by what tells it from the others."""
    trial = row.trial
    return (
        f"clean {trial.runner}, {trial.preset}, {trial.scheme},"
        f" page size {trial.page_size}, {trial.dtype}"
        f"{', steps overlap' if trial.overlap else ''}"
    )


def _settings(trial: TrialSettings) -> Iterator[Fact]:
    yield Fact("runner", trial.runner)
    yield Fact("preset", trial.preset)
    yield Fact("location scheme", trial.scheme)
    yield Fact("dtype", trial.dtype)
    yield Fact("device", trial.device)
    yield Fact("page size", str(trial.page_size))
    yield Fact("slots", f"{trial.full_slots} full, {trial.swa_slots} SWA")
    yield Fact("request rows", str(trial.rows))
    yield Fact("buckets", words(trial.buckets))
    yield Fact("token buckets", words(trial.token_buckets))
    yield Fact("steps overlap", "yes" if trial.overlap else "no")


def _finding(row: TrialRow, anchor: str, expected: str | None, room: int) -> Finding | None:
    if row.finding is None:
        return None
    return finding_view(row.finding, case_text(row.trial, row.finding), anchor, expected, room)


def finding_view(
    finding: RecordedFinding, case: str, anchor: str, expected: str | None, room: int
) -> Finding:
    """Return a counterexample; `case` is the text of its file, `expected` the property to lead.

    Its time line has at most `room` boxes.
    """
    seen = [_seen(violation) for violation in finding.violations]
    nothing = Seen("nothing", 0, "Nothing was violated when it was played again.", None, ())
    lead = next((other for other in seen if other.property == expected), [*seen, nothing][0])
    return Finding(
        anchor=anchor,
        lead=lead,
        others=tuple(other for other in seen if other is not lead),
        violated=bool(seen),
        explanation=describe(finding.explanation, finding.timeline),
        error=finding.error or "",
        timeline=lay_out(finding.timeline, room),
        case=case,
        case_file=finding.case_file,
        reproduce=finding.reproduce,
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


def case_text(trial: TrialSettings, finding: RecordedFinding) -> str:
    """Return the case file of a finding, a step or a violation a line.

    The record holds apart what a case shares with its finding.
    """
    case = asdict(finding.case) | {
        "trial": asdict(trial),
        "schedule": asdict(finding.schedule),
        "violations": [asdict(violation) for violation in finding.violations],
    }
    if finding.history:
        case["history"] = [asdict(schedule) for schedule in finding.history]
    parts = [f" {json.dumps(name)}: {_lines(value)}" for name, value in case.items()]
    return "{\n" + ",\n".join(parts) + "\n}"


def _lines(value: Any) -> str:
    """Return JSON text in which a list of objects has a line for each."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_lines(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
    return json.dumps(value)


def _room(record: Record) -> int:
    """Return how many boxes each time line may draw."""
    hunts = (*record.clean, *record.bugs)
    return ROOM // max(10, sum(hunt.finding is not None for hunt in hunts))
