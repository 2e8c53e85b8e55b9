"""The report of a run of `regress`."""

from collections.abc import Iterator, Mapping, Sequence

from paritybit.harness.errors import headline
from paritybit.harness.explain.facts import ResetOutcome, SourceLine
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import file_name
from paritybit.harness.records.schema import BugRow, Counterexample, Record, Status, TrialRow
from paritybit.reports import drawings
from paritybit.reports.model import (
    Block,
    Card,
    DataTable,
    DrawingKey,
    Fact,
    Facts,
    Failure,
    PageSection,
    Paragraph,
    Piece,
    ReplayCommand,
    Report,
    anchors,
    comma_separated,
    duration,
    environment_facts,
)

from paritybit.launch.words import plural

VERDICTS: Mapping[str, tuple[str, str]] = {
    "green": ("good", "✓"),
    "red": ("bad", "✗"),
    "interrupted": ("warn", "‖"),
}
"""Tone and sign of each verdict."""

MEANINGS: Mapping[Status, str] = {
    Status.NOT_REPRODUCED: "The hunt detected the bug, but replaying the shrunk schedule did not.",
    Status.FAILED: "An error ended it, so it proves nothing.",
    Status.DEVICE_LOST: "A step lost the device. Later work ran in a new process.",
    Status.MISSED: "No schedule showed the bug.",
    Status.VACUOUS: "No replay could have shown a violation, so it proves nothing.",
    Status.CAPTURE_WARNED: "A warning was logged while the graphs were captured.",
}
"""The meaning of a status without a violation."""

OUTCOMES: Mapping[ResetOutcome, str] = {
    "holds": "the property holds",
    "violated": "the property is still violated",
    "fails": "the forward fails, which shows nothing",
    "nothing to reset": "nothing to reset: it has what it must have",
}
"""What a reset of one suspect showed."""

MARKS = (
    "schedules needed to detect the bug; ○ cannot affect the runner; ✗ unexpected result; empty: "
    "not tested"
)

MOST_LISTED = 6
"""The number of further failures that a cause lists by name."""

MOST_LINES = 3
"""The number of lines of code that a cause lists."""

CAUSE = slice(2, 3)
"""The sentence about the cause in a proof: Let, then, but, so."""


def report_of(record: Record) -> Report:
    """Return the report of a run."""
    tone, sign = VERDICTS[record.verdict]
    rows = all_rows(record)
    names = dict(zip(map(id, rows), anchors(map(title_of, rows)), strict=True))
    return Report(
        subject="the built-in engine",
        word=record.verdict,
        tone=tone,
        sign=sign,
        message=record.message,
        when=record.started.replace("T", " ").replace("Z", " UTC"),
        command=record.command,
        figures=tuple(figures(record)),
        undecided=tuple(unjudged(record)),
        causes=tuple(causes(record, names)),
        sections=(
            PageSection("clean", "Clean trials", (clean_trials(record),)),
            PageSection("bugs", "Bugs and runners", (bugs(record, names),)),
            PageSection(
                "findings",
                "Findings and detected bugs",
                tuple(card(row, names[id(row)]) for row in rows if has_card(row)),
            ),
            PageSection("key", "How to read the drawings", (DrawingKey(),)),
            PageSection("environment", "Environment", (Facts(tuple(environment(record))),)),
        ),
    )


def all_rows(record: Record) -> tuple[TrialRow, ...]:
    """Return all clean trials and hunts in the order of the record."""
    return (*record.clean, *record.bugs)


def has_card(row: TrialRow) -> bool:
    """Whether a trial or hunt has something to show."""
    return isinstance(row, BugRow) or row.finding is not None


def title_of(row: TrialRow) -> str:
    """Return the title of a clean trial or a hunt, with runner and model."""
    trial = row.trial
    name = row.bug if isinstance(row, BugRow) else "clean"
    overlap = ", steps overlap" if trial.overlap else ""
    return f"{name}@{trial.runner} ({trial.preset}, {trial.scheme}{overlap})"


def figures(record: Record) -> Iterator[Fact]:
    """Yield the most important figures of a run."""
    rows = all_rows(record)
    yield Fact.of("clean trials passed", pass_count(record.clean))
    yield Fact.of("hunts as expected", pass_count(record.bugs))
    yield Fact.of("schedules", f"{sum(row.schedules for row in rows):,}")
    yield Fact.of("replays", f"{sum(row.replays for row in rows):,}")
    yield Fact.of("padded replays", f"{sum(row.padded_replays for row in rows):,}")
    yield Fact.of("time taken", duration(record.seconds))


def pass_count(rows: Sequence[TrialRow]) -> str:
    """Return how many of some rows ended as expected."""
    return f"{sum(row.status.expected for row in rows)} of {len(rows)}"


def unjudged(record: Record) -> Iterator[str]:
    """Yield the errors after a verdict, which it does not show."""
    for row in all_rows(record):
        if row.finding is not None and row.finding.error:
            yield f"{title_of(row)}: the explainer failed: {headline(row.finding.error)}"
        if row.error and row.status.expected:
            yield f"{title_of(row)}: an error after its verdict: {row.raised}"


def causes(record: Record, names: Mapping[int, str]) -> Iterator[Failure]:
    """Yield the failures of a run by cause, each with the shortest schedule first."""
    found: dict[tuple[str, str], list[TrialRow]] = {}
    for row in all_rows(record):
        if not row.status.expected:
            found.setdefault((row.status, cause_of(row)), []).append(row)
    for (status, cause), rows in found.items():
        first, *others = sorted(rows, key=length)
        lines = sources_of(first.finding)
        facts = tuple(answers(first, others))
        yield Failure(
            name=f"{status}: {cause}",
            count=plural(len(rows), "trial"),
            facts=facts,
            short=facts[:2],
            line=(lines[0].file, lines[0].line) if lines else None,
            replay=None if first.finding is None else replay_of(first.finding),
            anchor=names[id(first)] if has_card(first) else "",
        )


def sources_of(finding: Counterexample | None) -> Sequence[SourceLine]:
    """Return the lines of code to look at, the nearest to the cause first."""
    found = None if finding is None else finding.explanation
    return () if found is None else found.sources


def length(row: TrialRow) -> int:
    """Return the number of steps of a row's schedule. A row without one comes last."""
    return len(row.finding.case.schedule.steps) if row.finding is not None else 2**31


def cause_of(row: TrialRow) -> str:
    """Return the name of the cause with its runner. Findings with the same name share a cause."""
    finding = row.finding
    if finding is None:
        return row.raised or "nothing was found"
    found = finding.explanation
    if found is None:
        seen = finding.violations
        where = f"{seen[0].property} on {row.trial.runner}" if seen else ""
        return where or "no violation in the second play"
    runner = found.at.runner or "eager forward"
    if found.cause is not None:
        holders = dict.fromkeys(one.holder for one in found.cause.elements)
        return f"{runner}: {' '.join([found.cause.name, ', '.join(holders)]).strip()}"
    if found.difference is not None:
        return f"{runner}: {found.property_id}, first seen in {found.difference.op}"
    return f"{runner}: {found.property_id}"


def answers(row: TrialRow, others: Sequence[TrialRow]) -> Iterator[Fact]:
    """Yield what failed, why, where in the source, and the other failures."""
    finding = row.finding
    what = MEANINGS.get(row.status, "")
    if finding is not None and finding.violations:
        lead = finding.violations[0]
        what = f"step {lead.step} violates {lead.property}: {lead.message}"
    elif isinstance(row, BugRow) and row.detected_by:
        what += f" {row.detected_by} must detect it."
    yield Fact.of("what", f"{title_of(row)}: {what}")
    yield Fact.of("why", why(row))
    if lines := sources_of(finding)[:MOST_LINES]:
        yield Fact.of("source", source_lines(lines))
    if others:
        more = f" and {len(others) - MOST_LISTED} more" if len(others) > MOST_LISTED else ""
        yield Fact.of("also", comma_separated(map(title_of, others[:MOST_LISTED])) + more)


def why(row: TrialRow) -> str:
    """Describe the cause as far as it is known."""
    finding = row.finding
    if finding is not None and finding.explanation is not None:
        return "".join(finding.explanation.proof[CAUSE]).removeprefix("But ")
    if finding is not None and finding.error is not None:
        return f"not known: the explainer failed: {headline(finding.error)}"
    if row.error is not None:
        return row.raised
    return f"not known; {row.schedules:,} schedules and {row.replays:,} replays were played"


def source_lines(lines: Sequence[SourceLine]) -> str:
    """Return lines of code as text."""
    return comma_separated(f"{one.file}:{one.line} ({one.what})" for one in lines)


def replay_of(finding: Counterexample) -> ReplayCommand:
    """Return the command that replays a finding."""
    return ReplayCommand(f"cases/{file_name(finding.case)}")


def clean_trials(record: Record) -> DataTable:
    """Return the table of clean trials."""
    head = ("runner", "model", "scheme", "page", "dtype", "schedules", "replays", "padded")
    rows = [
        (
            *map(Piece, (row.trial.runner + " *" * row.trial.overlap, row.trial.preset)),
            *map(Piece, (str(row.trial.scheme), str(row.trial.page_size), row.trial.dtype)),
            *(Piece(f"{count:,}") for count in (row.schedules, row.replays, row.padded_replays)),
            Piece(row.status, tone=tone_of(row)),
        )
        for row in record.clean
    ]
    note = "* with overlapping steps" if any(row.trial.overlap for row in record.clean) else ""
    return DataTable(
        plural(len(rows), "clean trial"), (*head, "verdict"), tuple(rows), note, printed=True
    )


def tone_of(row: TrialRow) -> str:
    """Return the tone of a row's status."""
    return "good" if row.status.expected else "bad"


def bugs(record: Record, names: Mapping[int, str]) -> DataTable:
    """Return the table of bugs: the hunts by runner, and the property that must detect each."""
    runners = list(dict.fromkeys(hunt.trial.runner for hunt in record.bugs))
    rows = []
    for bug in dict.fromkeys(hunt.bug for hunt in record.bugs):
        hunts = [hunt for hunt in record.bugs if hunt.bug == bug]
        by = dict.fromkeys(one.detected_by for one in hunts if one.detected_by is not None)
        cells = (hunt_piece(hunts, runner, names) for runner in runners)
        rows.append((Piece(bug), *cells, Piece(comma_separated(by))))
    head = ("bug", *runners, "detected by")
    title = plural(len(record.bugs), "hunt")
    return DataTable(title, head, tuple(rows), MARKS, printed=True, matrix=True)


def hunt_piece(hunts: Sequence[BugRow], runner: str, names: Mapping[int, str]) -> Piece:
    """Return the result for a bug on a runner, with a link to its hunt."""
    mine = [hunt for hunt in hunts if hunt.trial.runner == runner]
    if not mine:
        return Piece("")
    href = f"#{names[id(mine[0])]}"
    if not all(hunt.status.expected for hunt in mine):
        return Piece("✗", href, "bad")
    if mine[0].unaffected is not None:
        return Piece("○", href)
    return Piece("/".join(str(hunt.drawn) for hunt in mine), href, "good")


def card(row: TrialRow, anchor: str) -> Card:
    """Return a hunt or a clean trial in full."""
    seen = row.finding.violations if row.finding is not None else ()
    names = comma_separated(dict.fromkeys(one.property for one in seen))
    summary = f"step {seen[0].step}: {names}" if seen else ""
    blocks = tuple(card_blocks(row))
    return Card(title_of(row), blocks, anchor, row.status, tone_of(row), summary)


def card_blocks(row: TrialRow) -> Iterator[Block]:
    """Yield the content of a card."""
    if isinstance(row, BugRow):
        yield Paragraph(row.mechanism)
    yield Facts(tuple(card_facts(row)))
    if row.error:
        yield Paragraph(row.error, "bad")
    if row.finding is not None:
        yield from finding_blocks(row, row.finding)


def card_facts(row: TrialRow) -> Iterator[Fact]:
    """Yield the facts of a hunt or clean trial."""
    if isinstance(row, BugRow):
        yield Fact.of("must be detected by", row.detected_by or "nothing")
        if row.unaffected:
            yield Fact.of("cannot affect the runner because", row.unaffected)
        yield Fact.of("public thread", row.thread)
        yield Fact.of("schedules to detection", row.drawn)
    yield Fact.of("schedules, steps", f"{row.schedules:,}, {row.steps:,}")
    yield Fact.of("replays, padded", f"{row.replays:,}, {row.padded_replays:,}")
    yield Fact.of("settings", settings(row.trial))


def settings(trial: TrialConfig) -> str:
    """Describe the settings of a trial."""
    return (
        f"{trial.dtype} on {trial.device}, page size {trial.page_size}, {trial.full_slots} full "
        f"and {trial.swa_slots} SWA slots, {trial.rows} rows, buckets "
        f"{comma_separated(trial.buckets)} and {comma_separated(trial.token_buckets)} tokens"
    )


def finding_blocks(row: TrialRow, finding: Counterexample) -> Iterator[Block]:
    """Yield a counterexample: violation, proof, bits, schedule, slots, replay."""
    expected = row.detected_by if isinstance(row, BugRow) else None
    seen = finding.violations
    lead = next((one for one in seen if one.property == expected), seen[0] if seen else None)
    if lead is not None:
        yield Paragraph(f"Step {lead.step} violates {lead.property}: {lead.message}", "lead")
    if finding.error is not None:
        yield Paragraph(f"The explainer failed: {finding.error}", "bad")
    found = finding.explanation
    if found is not None:
        yield from map(Paragraph, found.proof)
        tried = [Fact.of(one.name, OUTCOMES[one.outcome]) for one in found.suspects]
        if tried:
            yield Card("Each suspect was reset alone, and the step ran again", (Facts((*tried,)),))
        if found.sources:
            yield Facts((Fact.of("lines to look at", source_lines(found.sources)),))
        difference = found.difference
        pattern = drawings.bits(found.property_id, {} if difference is None else vars(difference))
    else:
        pattern = None if lead is None else drawings.bits(lead.property, lead.where)
    if pattern is not None:
        yield pattern
    others = [Fact.of(f"{one.property}, step {one.step}", one.message) for one in seen]
    if len(others) > 1:
        yield Card("All violations", (Facts(tuple(others)),))
    yield from drawings_of(finding)
    yield replay_of(finding)


def drawings_of(finding: Counterexample) -> Iterator[Block]:
    """Yield the drawings of a finding."""
    line = drawings.steps(finding.timeline)
    if line is not None:
        yield Paragraph("The shrunk schedule", "title")
        yield line
    found = finding.explanation
    if found is None:
        return
    at = found.at
    where = f"step {at.step}" if at.bucket is None else f"step {at.step} in bucket {at.bucket}"
    for pool in drawings.slots(found):
        yield Paragraph(f"Slots after {where}", "title")
        yield pool


def environment(record: Record) -> Iterator[Fact]:
    """Yield the environment and the settings of a run."""
    yield from environment_facts(record.environment)
    yield Fact.of("processes", record.environment.processes)
    yield Fact.of("seed", record.seed)
    yield Fact.of("schedules for each bug on each runner, at most", record.examples)
