"""What the page shows, read off a run record: one small value per table row or card.

Knows the record's JSON and the words for it. Does not know markup, and
judges nothing: verdict and statuses are the record's, only gathered here.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from reports import detection_plot
from reports.cards import COUNTS, Card, Data, bug_cards, clean_cards, setting
from reports.detection_plot import Plot
from reports.skipped import skipped
from reports.texts import Fact, Piece, duration, or_dash, words

VERDICTS: Mapping[str, tuple[str, str, str]] = {
    "green": ("Green", "good", "✓"),
    "red": ("Red", "bad", "✕"),
    "interrupted": ("Interrupted", "warn", "‖"),
}
"""Of each verdict: the word, the tone, the sign."""

MARKS: Mapping[tuple[bool, bool], tuple[str, str, str]] = {
    (True, True): ("caught", "●", "must catch it, and did"),
    (False, True): ("also", "○", "saw it as well"),
    (True, False): ("missed", "✕", "must catch it, but did not"),
    (False, False): ("none", "·", "did not see it"),
}
"""Of each (expected, seen): the kind of mark, the sign, the words."""

ENVIRONMENT: Mapping[str, str] = {
    "device_name": "device",
    "device": "backend",
    "paritybit": "paritybit",
    "commit": "commit",
    "python": "Python",
    "torch": "PyTorch",
    "triton": "Triton",
    "numpy": "NumPy",
    "hypothesis": "Hypothesis",
}


Hunts = list[tuple[Data, Card]]
"""Hunts as the record has them, each with its card."""


@dataclass(frozen=True)
class Mark:
    """One cell of the matrix. `count` is of the hunts that saw it, '' where none did."""

    kind: str
    sign: str
    message: str
    count: str = ""


@dataclass(frozen=True)
class MatrixRow:
    """The hunts of one bug, on one runner or on all; `sought` of them had to catch it."""

    name: str
    hunts: tuple[Piece, ...]
    target: int
    status: str
    sound: bool
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Pair:
    """One bug on one runner: whether it was caught, or why it cannot be. `anchor` may be ''."""

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
class TrialConfig:
    """One trial on the clean subject. `anchor` is its card's, '' if nothing was found."""

    facts: Mapping[str, Any]
    source: str
    counts: Mapping[str, Any]
    checked: str
    anchor: str
    violated: str
    step: Any


@dataclass(frozen=True)
class Event:
    """How often a state was reached; `share` is the length of its bar in percent."""

    name: str
    count: int
    share: int
    required: bool


@dataclass(frozen=True)
class Filter:
    """What findings can be filtered by, and the values that they have of it."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Review:
    """Everything on the page that is not the record's word for word."""

    word: str
    tone: str
    sign: str
    started: str
    figures: tuple[Fact, ...]
    attention: tuple[Piece, ...]
    environment: tuple[Fact, ...]
    matrix: tuple[MatrixRow, ...]
    matrix_by_runner: tuple[MatrixRow, ...]
    legend: tuple[Mark, ...]
    runners: tuple[str, ...]
    runner_rows: tuple[RunnerRow, ...]
    trials: tuple[TrialConfig, ...]
    property_sets: tuple[Fact, ...]
    events: tuple[Event, ...]
    clean_cards: tuple[Card, ...]
    bug_cards: tuple[Card, ...]
    plots: tuple[Plot, ...]
    skipped: tuple[Fact, ...]
    filters: tuple[Filter, ...]


def review(record: Data) -> Review:
    """Return what the page shows. Raises LookupError for a record that lacks something."""
    word, tone, sign = VERDICTS[record["verdict"]]
    bugs, clean = tuple(bug_cards(record)), tuple(clean_cards(record))
    events = tuple(_events(record))
    return Review(
        word=word,
        tone=tone,
        sign=sign,
        started=record["started"].replace("T", " ").replace("Z", " UTC"),
        figures=tuple(_figures(record, bugs)),
        attention=tuple(_attention(record, clean, bugs, events)),
        environment=tuple(_environment(record["environment"])),
        matrix=tuple(_matrix(record, _grouped(record, bugs, "bug"))),
        matrix_by_runner=tuple(_matrix(record, _grouped(record, bugs, "bug", "runner"))),
        legend=tuple(Mark(*each) for each in MARKS.values()),
        runners=tuple(dict.fromkeys(pair["runner"] for pair in record["pairs"])),
        runner_rows=tuple(_runner_rows(record, bugs)),
        trials=tuple(_trials(record, clean)),
        property_sets=tuple(_property_sets(record)),
        events=events,
        clean_cards=clean,
        bug_cards=bugs,
        plots=tuple(_plots(record)),
        skipped=tuple(skipped(record)),
        filters=tuple(_filters([*clean, *bugs])),
    )


def _figures(record: Data, bug_cards: Sequence[Card]) -> Iterator[Fact]:
    everything = [*record["clean"], *record["bugs"]]
    clean = sum(trial["finding"] is None for trial in record["clean"])
    sound = sum(card.sound for card in bug_cards)
    if record["clean"]:
        yield Fact("clean trials without a violation", f"{clean} of {len(record['clean'])}")
    if bug_cards:
        yield Fact("bug hunts that ended as expected", f"{sound} of {len(bug_cards)}")
    for name in ("schedules", "replays", "padded_replays"):
        yield Fact(name.replace("_", " "), f"{sum(each[name] for each in everything):,}")
    yield Fact("time taken", duration(record["seconds"]))


def _attention(
    record: Data, clean_cards: Iterable[Card], bug_cards: Iterable[Card], events: Iterable[Event]
) -> Iterator[Piece]:
    """Yield what speaks against a green run, the gravest first."""
    for card in clean_cards:
        assert card.finding is not None
        message = f"{card.title} ({card.source}): violates {card.finding.lead.property}"
        yield Piece(message, card.anchor)
    for card in bug_cards:
        if not card.sound:
            message = f"{card.title} ({card.source}): {card.status}. {card.status_told}"
            yield Piece(message, card.anchor)
    for trial in record["clean"]:
        wrong = [] if trial["status"] in {"green", "red"} else [trial["status"]]
        wrong += [trial["error"]] if trial["error"] is not None else []
        if not trial["padded_replays"]:
            wrong.append("no padded replay, so it proves nothing")
        if wrong:
            yield Piece(f"{setting(trial)} ({trial['source']}): {'; '.join(wrong)}", "clean")
    unreached = [event.name for event in events if event.required and not event.count]
    if unreached and _judges_coverage(record):
        yield Piece(f"Never reached: {words(unreached)}", "coverage")


def _judges_coverage(record: Data) -> bool:
    """Whether states that were not reached speak against this run."""
    return bool(record["clean"]) and record["verdict"] != "interrupted"


def _environment(environment: Data) -> Iterator[Fact]:
    for key, name in ENVIRONMENT.items():
        value = environment[key]
        if key == "commit":
            yield Fact(name, _commit(value, dirty=environment["dirty"]))
        else:
            yield Fact(name, "not installed" if value is None else str(value))


def _commit(commit: str | None, *, dirty: bool) -> str:
    """Return a commit in words, a full one shortened to 12 digits."""
    if commit is None:
        return "not recorded"
    short = commit[:12] if re.fullmatch("[0-9a-f]{40,}", commit) else commit
    return f"{short}, with uncommitted changes" if dirty else short


def _matrix(record: Data, groups: Mapping[str, Hunts]) -> Iterator[MatrixRow]:
    """Yield a row for each group of hunts of one bug."""
    for name, hunts in groups.items():
        target = [hunt for hunt, _ in hunts if hunt["detected_by"] is not None]
        bugs = target or [hunt for hunt, _ in hunts]
        bad = [card for _, card in hunts if not card.sound]
        yield MatrixRow(
            name=name,
            hunts=tuple(_hunt(hunt, card) for hunt, card in hunts),
            target=len(target),
            status=bad[0].status if bad else bugs[0]["status"],
            sound=not bad,
            marks=tuple(_mark(bugs, each) for each in record["properties"]),
        )


def _hunt(hunt: Data, card: Card) -> Piece:
    """Return the link to a hunt: its source, and the schedules it drew until it caught its bug."""
    drawn = hunt["schedules_to_detection"]
    return Piece(card.source if drawn is None else f"{card.source} {drawn}", card.anchor)


def _grouped(record: Data, cards: Sequence[Card], *keys: str) -> dict[str, Hunts]:
    """Return the hunts with their cards by what they have at these keys."""
    hunts: dict[str, Hunts] = {}
    for bug, card in zip(record["bugs"], cards, strict=True):
        hunts.setdefault("@".join(bug[key] for key in keys), []).append((bug, card))
    return hunts


def _to_detection(hunts: Iterable[Data]) -> str:
    """Return how many schedules each hunt drew until it caught the bug."""
    return "/".join(or_dash(hunt["schedules_to_detection"]) for hunt in hunts)


def _mark(hunts: Sequence[Data], name: str) -> Mark:
    """Return what the hunts of a bug on a runner saw by one property."""
    expected = name == hunts[0]["detected_by"]
    count = sum(name in hunt["seen"] for hunt in hunts)
    kind, sign, message = MARKS[expected, count == len(hunts) if expected else count > 0]
    of_hunts = f"{count} of {len(hunts)} hunts"
    return Mark(kind, sign, f"{message}: {of_hunts}", str(count) if count else "")


def _runner_rows(record: Data, cards: Sequence[Card]) -> Iterator[RunnerRow]:
    """Yield a row for each bug of the build that was tried on any runner."""
    hunts = _grouped(record, cards, "bug", "runner")
    for name in dict.fromkeys(hunt["bug"] for hunt in record["bugs"]):
        pairs = [pair for pair in record["pairs"] if pair["bug"] == name]
        yield RunnerRow(
            name, tuple(_pair(pair, hunts.get(f"{name}@{pair['runner']}", [])) for pair in pairs)
        )


def _pair(pair: Data, hunts: Hunts) -> Pair:
    anchor = hunts[0][1].anchor if hunts else ""
    bad = [card for _, card in hunts if not card.sound]
    if bad:
        return Pair("missed", "✕", f"{bad[0].status}: {bad[0].status_told}", bad[0].anchor)
    if pair["unaffected"] is not None and hunts:
        return Pair("also", "○", f"tried, cannot harm it: {pair['unaffected']}", anchor)
    if not pair["can_be_switched_on"]:
        return Pair("none", "–", f"cannot harm it: {pair['unaffected']}", "")
    if not hunts:
        return Pair("none", "·", "not asked for", "")
    drawn = _to_detection([bug for bug, _ in hunts])
    sources = "/".join(card.source for _, card in hunts)
    return Pair("caught", drawn, f"caught after {drawn} schedules ({sources})", anchor)


def _plots(record: Data) -> Iterator[Plot]:
    for key in ("bug", "runner"):
        plot = detection_plot.lay_out(record["bugs"], key, record["examples"])
        if plot is not None:
            yield plot


def _filters(cards: Sequence[Card]) -> Iterator[Filter]:
    """Yield what tells the cards apart: what all have in common filters nothing."""
    values: Mapping[str, Iterable[str]] = {
        "bug": (card.bug for card in cards),
        "runner": (card.runner for card in cards),
        "property": (name for card in cards for name in card.violated),
        "outcome": (card.status for card in cards),
        "source": (card.source for card in cards),
    }
    for name, each in values.items():
        different = tuple(dict.fromkeys(each))
        if len(different) > 1:
            yield Filter(name, different)


def _trials(record: Data, cards: Sequence[Card]) -> Iterator[TrialConfig]:
    remaining = iter(cards)
    for trial in record["clean"]:
        card = next(remaining) if trial["finding"] is not None else None
        lead = card.finding.lead if card is not None and card.finding is not None else None
        yield TrialConfig(
            facts=trial["trial"],
            source=trial["source"],
            counts={name: trial[name] for name in (*COUNTS, "seconds")},
            checked=f"{len(trial['properties'])} of {len(record['properties'])}",
            anchor=card.anchor if card is not None else "",
            violated=lead.property if lead is not None else "",
            step=lead.step if lead is not None else None,
        )


def _property_sets(record: Data) -> Iterator[Fact]:
    """Yield each different set of properties that clean trials were checked for, once."""
    sets = dict.fromkeys(tuple(trial["properties"]) for trial in record["clean"])
    for names in sets:
        yield Fact(f"{len(names)} of {len(record['properties'])}", words(names))


def _events(record: Data) -> Iterator[Event]:
    """Yield the required events in the record's order, then the others by name.

    The bars grow with the logarithm of the count: one padded replay and a thousand
    must both be visible, and one more matters most where there are few.
    """
    counts: Counter[str] = Counter()
    for trial in record["clean"]:
        counts.update(trial["events"])
    most = max([1, *counts.values()])
    required = record["required_events"]
    for name in (*required, *sorted(counts.keys() - set(required))):
        share = round(100 * log(1 + counts[name]) / log(1 + most))
        yield Event(name, counts[name], share, name in required)
