"""The content of the page from a run record: one small value per table row or card.

This module has no markup and judges nothing. Verdict and statuses come from the record.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log

from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.schema import (
    BugOnRunner,
    BugRow,
    Environment,
    Record,
    Row,
)
from paritybit.reports.cards import Card, Filter, bug_cards, clean_cards, filters, setting
from paritybit.reports.causes import Failed, failed
from paritybit.reports.texts import Fact, Piece, duration, words
from paritybit.reports.verdicts import (
    clean_green,
    extent,
    hunts_sound,
    judges_coverage,
    mark,
    pair_mark,
    that_can,
    to_detection,
    together,
)

VERDICTS: Mapping[str, tuple[str, str, str]] = {
    "green": ("Green", "good", "✓"),
    "red": ("Red", "bad", "✕"),
    "interrupted": ("Interrupted", "warn", "‖"),
}
"""Word, tone and sign of each verdict."""

MARKS: Mapping[str, tuple[str, str]] = {
    "caught": ("●", "must detect it and did"),
    "also": ("○", "also detected it"),
    "missed": ("✕", "must detect it but did not, or an error ended the hunt"),
    "none": ("·", "did not detect it"),
}
"""Sign and meaning of each kind of mark."""

MOST_OPEN = 3
"""The number of causes that a page shows at once. The others are folded."""

MOST_WHOLE = 40
"""The number of findings with markup. Further ones are text until opened, to keep the page fast."""

Hunts = list[tuple[BugRow, Card]]
"""Hunts from the record, each with its card."""


@dataclass(frozen=True)
class Mark:
    """One cell of the matrix. `count` is the number of hunts that detected it, or ''."""

    kind: str
    sign: str
    message: str
    count: str = ""


@dataclass(frozen=True)
class MatrixRow:
    """The hunts of one bug on one runner or on all.

    `target` is the number of hunts that had to detect it. `reached`, `triggered` and `detected`
    count the hunts in which it got that far.
    """

    name: str
    hunts: tuple[Piece, ...]
    target: int
    reached: int
    triggered: int
    detected: int
    status: str
    sound: bool
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Pair:
    """One bug on one runner: whether it was detected, or why it cannot be. `anchor` may be ''."""

    kind: str
    sign: str
    message: str
    anchor: str


@dataclass(frozen=True)
class RunnerRow:
    """One bug on every runner."""

    bug: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class CleanTrial:
    """One clean trial. `anchor` is that of its card, or '' without a finding.

    `fails_in` is the runner whose forward fails, or '' if it is the runner under test.
    """

    facts: TrialConfig
    counts: Row
    anchor: str
    violated: str
    step: int | None
    fails_in: str


@dataclass(frozen=True)
class Event:
    """How often a state was reached; `share` is the length of its bar in percent."""

    name: str
    count: int
    share: int
    required: bool


@dataclass(frozen=True)
class Review:
    """The content of the page that is not copied from the record."""

    word: str
    tone: str
    sign: str
    started: str
    figures: tuple[Fact, ...]
    failed: tuple[Failed, ...]
    attention: tuple[Piece, ...]
    environment: tuple[Fact, ...]
    matrix: tuple[MatrixRow, ...]
    matrix_by_runner: tuple[MatrixRow, ...]
    legend: tuple[Mark, ...]
    runners: tuple[str, ...]
    runner_rows: tuple[RunnerRow, ...]
    trials: tuple[CleanTrial, ...]
    events: tuple[Event, ...]
    cards: tuple[Card, ...]
    filters: tuple[Filter, ...]
    unsound: int
    extent: str
    most_open: int = MOST_OPEN
    most_whole: int = MOST_WHOLE

    @property
    def more_causes(self) -> str:
        """The number of folded causes as text."""
        more = len(self.failed) - self.most_open
        return f"{more} more cause{'s' * (more > 1)}"


def review(record: Record) -> Review:
    """Return the content of the page."""
    word, tone, sign = VERDICTS[record.verdict]
    bugs, clean = tuple(bug_cards(record)), tuple(clean_cards(record))
    events = tuple(_events(record))
    return Review(
        word=word,
        tone=tone,
        sign=sign,
        started=record.started.replace("T", " ").replace("Z", " UTC"),
        figures=tuple(_figures(record)),
        failed=tuple(failed(record, clean, bugs)),
        attention=tuple(_attention(record, (*clean, *bugs), events)),
        environment=tuple(_environment(record.environment)),
        matrix=tuple(_matrix(record, _by_bug(record, bugs))),
        matrix_by_runner=tuple(_matrix(record, _by_bug_and_runner(record, bugs))),
        legend=tuple(Mark(kind, *shown) for kind, shown in MARKS.items()),
        runners=tuple(dict.fromkeys(pair.runner for pair in record.pairs)),
        runner_rows=tuple(_runner_rows(record, bugs)),
        trials=tuple(_trials(record, clean)),
        events=events,
        cards=(*clean, *bugs),
        filters=tuple(filters([*clean, *bugs])),
        unsound=sum(not card.sound for card in (*clean, *bugs)),
        extent=extent(record),
    )


def _figures(record: Record) -> Iterator[Fact]:
    everything: tuple[Row, ...] = (*record.clean, *record.bugs)
    if record.clean:
        yield Fact("clean trials passed", clean_green(record))
    if record.bugs:
        yield Fact("bug hunts that ended as expected", hunts_sound(record))
    yield Fact("schedules", f"{sum(hunt.schedules for hunt in everything):,}")
    yield Fact("replays", f"{sum(hunt.replays for hunt in everything):,}")
    yield Fact("padded replays", f"{sum(hunt.padded_replays for hunt in everything):,}")
    yield Fact("time taken", duration(record.seconds))


def _attention(record: Record, cards: Iterable[Card], events: Iterable[Event]) -> Iterator[Piece]:
    """Yield problems of a run other than failures."""
    for card in cards:
        if card.finding is not None and card.finding.error:
            yield Piece(f"{card.title}: the explainer failed", card.anchor)
        if card.error and card.sound:
            what = "an error after its verdict"
            yield Piece(f"{card.title}: {what}", card.anchor)
    for trial in record.clean:
        wrong: list[str] = [] if trial.status in {"green", "red"} else [trial.status]
        wrong += [trial.error] if trial.error is not None else []
        if not trial.padded_replays:
            wrong.append("no padded replay, so this proves nothing")
        if wrong:
            yield Piece(f"{setting(trial)}: {'; '.join(wrong)}", "clean")
    unreached = [event.name for event in events if event.required and not event.count]
    if unreached and judges_coverage(record):
        yield Piece(f"Never reached: {words(unreached)}", "coverage")


def _environment(environment: Environment) -> Iterator[Fact]:
    yield Fact("device", environment.device_name)
    yield Fact("backend", environment.device)
    if environment.processes is not None:
        yield Fact("processes", str(environment.processes))
    yield Fact("paritybit", environment.paritybit)
    yield Fact("commit", _commit(environment.commit, dirty=environment.dirty))
    for name, version in environment.versions.items():
        yield Fact(name, "not installed" if version is None else version)


def _commit(commit: str | None, *, dirty: bool | None) -> str:
    """Return a commit as text, shortened to 12 digits."""
    if commit is None:
        return "not recorded"
    short = commit[:12] if re.fullmatch("[0-9a-f]{40,}", commit) else commit
    return f"{short}, with uncommitted changes" if dirty else short


def _matrix(record: Record, groups: Mapping[str, Hunts]) -> Iterator[MatrixRow]:
    """Yield a row for each group of hunts of one bug."""
    for name, hunts in groups.items():
        target = [hunt for hunt, _ in hunts if hunt.detected_by is not None]
        bugs = that_can([hunt for hunt, _ in hunts])
        yield MatrixRow(
            name=name,
            hunts=tuple(_hunt(hunt, card) for hunt, card in hunts),
            target=len(target),
            reached=sum(hunt.reach is not None and hunt.reach.reached > 0 for hunt in target),
            triggered=sum(hunt.reach is not None and hunt.reach.triggered > 0 for hunt in target),
            detected=sum(hunt.detected_by in hunt.seen for hunt in target),
            status=together(hunt for hunt, _ in hunts),
            sound=all(card.sound for _, card in hunts),
            marks=tuple(_mark(bugs, property_id) for property_id in record.properties),
        )


def _hunt(hunt: BugRow, card: Card) -> Piece:
    """Return the link to a hunt, with its source and its schedules to detection."""
    return Piece(card.runner if hunt.drawn is None else f"{card.runner} {hunt.drawn}", card.anchor)


def _by_bug(record: Record, cards: Sequence[Card]) -> dict[str, Hunts]:
    """Return the hunts of each bug with their cards."""
    hunts: dict[str, Hunts] = {}
    for hunt, card in zip(record.bugs, cards, strict=True):
        hunts.setdefault(hunt.bug, []).append((hunt, card))
    return hunts


def _by_bug_and_runner(record: Record, cards: Sequence[Card]) -> dict[str, Hunts]:
    """Return the hunts of each bug@runner with their cards."""
    hunts: dict[str, Hunts] = {}
    for hunt, card in zip(record.bugs, cards, strict=True):
        hunts.setdefault(f"{hunt.bug}@{hunt.trial.runner}", []).append((hunt, card))
    return hunts


def _mark(hunts: Sequence[BugRow], name: str) -> Mark:
    """Return the mark of one property for the hunts of a bug."""
    count, kind = sum(name in hunt.seen for hunt in hunts), mark(hunts, name)
    sign, message = MARKS[kind]
    of_hunts = f"{count} of {len(hunts)} hunts"
    return Mark(kind, sign, f"{message}: {of_hunts}", str(count) if count else "")


def _runner_rows(record: Record, cards: Sequence[Card]) -> Iterator[RunnerRow]:
    """Yield a row for each bug that was tested on any runner."""
    hunts = _by_bug_and_runner(record, cards)
    for name in dict.fromkeys(hunt.bug for hunt in record.bugs):
        pairs = [pair for pair in record.pairs if pair.bug == name]
        yield RunnerRow(
            name, tuple(_pair(pair, hunts.get(f"{name}@{pair.runner}", [])) for pair in pairs)
        )


def _pair(pair: BugOnRunner, hunts: Hunts) -> Pair:
    anchor, rows = hunts[0][1].anchor if hunts else "", [hunt for hunt, _ in hunts]
    kind = pair_mark(pair, rows)
    if kind == "missed":
        bad = next(card for _, card in hunts if not card.sound)
        return Pair("missed", "✕", f"{bad.status}: {bad.meaning}", bad.anchor)
    if kind == "also":
        return Pair("also", "○", f"tested, cannot affect the runner: {pair.unaffected}", anchor)
    if kind == "lacking":
        return Pair("none", "–", f"cannot affect the runner: {pair.unaffected}", "")
    if kind == "unasked":
        return Pair("none", "·", "not selected", "")
    drawn = to_detection(rows)
    return Pair("caught", drawn, f"detected after {drawn} schedules", anchor)


def _trials(record: Record, cards: Sequence[Card]) -> Iterator[CleanTrial]:
    remaining = iter(cards)
    for trial in record.clean:
        card = next(remaining) if trial.finding is not None else None
        lead = card.finding.lead if card is not None and card.finding is not None else None
        yield CleanTrial(
            facts=trial.trial,
            counts=trial,
            anchor=card.anchor if card is not None else "",
            violated=lead.property if lead is not None else "",
            step=lead.step if lead is not None else None,
            fails_in=card.fails_in if card is not None and card.where else "",
        )


def _events(record: Record) -> Iterator[Event]:
    """Yield the required events in the record's order, then the others by name.

    The length of a bar is logarithmic in the count, so that small counts are visible too.
    """
    counts: Counter[str] = Counter()
    for trial in record.clean:
        counts.update(trial.events)
    most = max([1, *counts.values()])
    required = record.required_events
    for name in (*required, *sorted(counts.keys() - set(required))):
        share = round(100 * log(1 + counts[name]) / log(1 + most))
        yield Event(name, counts[name], share, name in required)
