"""What the page shows, read off a run record: one small value per table row or card.

Knows the record's JSON (version 1) and the words for it. Does not know markup, and
judges nothing: verdict and statuses are the record's, only gathered here.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from reports.bit_patterns import Comparison, compare
from reports.timeline import Timeline, lay_out, words

Data = Mapping[str, Any]

VERDICTS: Mapping[str, tuple[str, str, str]] = {
    "green": ("Green", "good", "✓"),
    "red": ("Red", "bad", "✕"),
    "interrupted": ("Interrupted", "warn", "‖"),
}
"""Of each verdict: the word, the tone, the sign."""

STATUSES: Mapping[str, tuple[bool, str]] = {
    "caught": (True, "The property that must catch it did."),
    "masked": (True, "It shows nowhere, as the table says: another site hides it."),
    "missed": (False, "No schedule showed it."),
    "wrong property": (False, "Seen, but not by the property that must catch it."),
    "not masked": (False, "The table says that it shows nowhere, yet it was seen."),
    "vacuous": (False, "No replay could have shown it, so nothing was proved."),
}
"""Of each status: whether it is as the table says, and what it means."""

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

LINK = re.compile(r"https?://[^\s<>\"',;]+")
MOST_VALUES = 16


@dataclass(frozen=True)
class Piece:
    """Some text, and where it leads ('' for nowhere)."""

    text: str
    href: str = ""


@dataclass(frozen=True)
class Fact:
    """A name and its value, in words."""

    name: str
    value: str


@dataclass(frozen=True)
class Mark:
    """One cell of the matrix."""

    kind: str
    sign: str
    told: str


@dataclass(frozen=True)
class MatrixRow:
    """One hunt of one bug. `anchor` is its card's."""

    bug: str
    source: str
    anchor: str
    status: str
    sound: bool
    to_detection: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Trial:
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
class Seen:
    """One violation, and the two bit patterns if it names them."""

    property: str
    step: int
    told: str
    comparison: Comparison | None
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Finding:
    """One counterexample. `lead` is the violation to read first."""

    anchor: str
    lead: Seen
    others: tuple[Seen, ...]
    timeline: Timeline | None
    schedule: str
    case_file: str
    reproduce: str


@dataclass(frozen=True)
class Card:
    """One hunt of one bug, or one finding on the clean subject, at full length."""

    anchor: str
    title: str
    source: str
    status: str
    status_told: str
    sound: bool
    mechanism: str
    facts: tuple[Fact, ...]
    expected: str
    masked_by: str
    threads: tuple[Piece, ...]
    counts: tuple[Fact, ...]
    finding: Finding | None


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
    legend: tuple[Mark, ...]
    clean: tuple[Trial, ...]
    property_sets: tuple[Fact, ...]
    events: tuple[Event, ...]
    clean_cards: tuple[Card, ...]
    bug_cards: tuple[Card, ...]


def review(record: Data) -> Review:
    """Return what the page shows. Raises KeyError for a record that lacks something."""
    word, tone, sign = VERDICTS[record["verdict"]]
    bug_cards = tuple(_bug_cards(record))
    clean_cards = tuple(_clean_cards(record))
    events = tuple(_events(record))
    return Review(
        word=word,
        tone=tone,
        sign=sign,
        started=record["started"].replace("T", " ").replace("Z", " UTC"),
        figures=tuple(_figures(record, bug_cards)),
        attention=tuple(_attention(record, clean_cards, bug_cards, events)),
        environment=tuple(_environment(record["environment"])),
        matrix=tuple(_matrix(record, bug_cards)),
        legend=tuple(Mark(*each) for each in MARKS.values()),
        clean=tuple(_trials(record, clean_cards)),
        property_sets=tuple(_property_sets(record)),
        events=events,
        clean_cards=clean_cards,
        bug_cards=bug_cards,
    )


def duration(seconds: float) -> str:
    """Return a length of time in words: seconds with one decimal, or minutes and seconds."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def anchors(names: Iterable[str]) -> Iterator[str]:
    """Yield an id for each name, safe in a link, a number making repeated ones different."""
    used: Counter[str] = Counter()
    for name in names:
        slug = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-")
        used[slug] += 1
        yield slug if used[slug] == 1 else f"{slug}--{used[slug]}"


def linked(text: str) -> tuple[Piece, ...]:
    """Split a text at its web addresses; nothing but http and https becomes a link."""
    pieces: list[Piece] = []
    end = 0
    for match in LINK.finditer(text):
        pieces += [Piece(text[end : match.start()]), Piece(_short(match[0]), match[0])]
        end = match.end()
    return tuple(piece for piece in [*pieces, Piece(text[end:])] if piece.text)


def _short(address: str) -> str:
    """Return an address as people cite it: owner/project#number, or without its scheme."""
    found = re.fullmatch(r"https?://github\.com/([\w.-]+/[\w.-]+)/(?:pull|issues)/(\d+)", address)
    return f"{found[1]}#{found[2]}" if found else address.split("://", 1)[1]


def _figures(record: Data, bug_cards: Sequence[Card]) -> Iterator[Fact]:
    everything = [*record["clean"], *record["bugs"]]
    clean = sum(trial["finding"] is None for trial in record["clean"])
    sound = sum(card.sound for card in bug_cards)
    if record["clean"]:
        yield Fact("clean trials without a violation", f"{clean} of {len(record['clean'])}")
    if bug_cards:
        yield Fact("hunts that ended as the table says", f"{sound} of {len(bug_cards)}")
    for name in ("schedules", "replays", "padded_replays"):
        yield Fact(name.replace("_", " "), f"{sum(each[name] for each in everything):,}")
    yield Fact("time taken", duration(record["seconds"]))


def _attention(
    record: Data, clean_cards: Iterable[Card], bug_cards: Iterable[Card], events: Iterable[Event]
) -> Iterator[Piece]:
    """Yield what speaks against a green run, the gravest first."""
    for card in clean_cards:
        assert card.finding is not None
        yield Piece(
            f"{card.title}: the clean subject violates {card.finding.lead.property}", card.anchor
        )
    for card in bug_cards:
        if not card.sound:
            told = f"{card.title} ({card.source}): {card.status}. {card.status_told}"
            yield Piece(told, card.anchor)
    for trial in record["clean"]:
        if not trial["padded_replays"]:
            yield Piece(f"{_setting(trial)}: no padded replay, so it proves nothing", "clean")
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
            value = "not recorded" if value is None else value
            value += " with uncommitted changes" if environment["dirty"] else ""
        yield Fact(name, "none" if value is None else str(value))


def _matrix(record: Data, cards: Iterable[Card]) -> Iterator[MatrixRow]:
    for bug, card in zip(record["bugs"], cards, strict=True):
        yield MatrixRow(
            bug=bug["bug"],
            source=bug["source"],
            anchor=card.anchor,
            status=card.status,
            sound=card.sound,
            to_detection=_or_dash(bug["schedules_to_detection"]),
            marks=tuple(
                Mark(*MARKS[name == bug["caught_by"], name in bug["seen"]])
                for name in record["properties"]
            ),
        )


def _trials(record: Data, cards: Sequence[Card]) -> Iterator[Trial]:
    remaining = iter(cards)
    for trial in record["clean"]:
        card = next(remaining) if trial["finding"] is not None else None
        lead = card.finding.lead if card is not None and card.finding is not None else None
        yield Trial(
            facts=trial["trial"],
            source=trial["source"],
            counts={name: trial[name] for name in (*COUNTS, "seconds")},
            checked=f"{len(trial['properties'])} of {len(record['properties'])}",
            anchor=card.anchor if card is not None else "",
            violated=lead.property if lead is not None else "",
            step=lead.step if lead is not None else None,
        )


COUNTS = ("schedules", "steps", "replays", "padded_replays")


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


def _bug_cards(record: Data) -> Iterator[Card]:
    bugs = record["bugs"]
    names = anchors(f"bug-{bug['bug']}-{bug['source']}" for bug in bugs)
    for bug, anchor in zip(bugs, names, strict=True):
        sound, status_told = STATUSES[bug["status"]]
        yield Card(
            anchor=anchor,
            title=bug["bug"],
            source=bug["source"],
            status=bug["status"],
            status_told=status_told,
            sound=sound,
            mechanism=bug["mechanism"],
            facts=tuple(_settings(bug["trial"])),
            expected=bug["caught_by"] or "",
            masked_by=bug["masked_by"] or "",
            threads=linked(bug["thread"]),
            counts=tuple(_bug_counts(bug)),
            finding=_finding(bug["finding"], anchor, bug["caught_by"]),
        )


def _bug_counts(bug: Data) -> Iterator[Fact]:
    yield Fact("schedules to detection", _or_dash(bug["schedules_to_detection"]))
    yield from _counts(bug)
    if bug["capture_warnings"]:
        yield Fact("warnings at capture", str(bug["capture_warnings"]))


def _counts(hunt: Data) -> Iterator[Fact]:
    for name in COUNTS:
        yield Fact(name.replace("_", " "), f"{hunt[name]:,}")
    yield Fact("time taken", duration(hunt["seconds"]))


def _clean_cards(record: Data) -> Iterator[Card]:
    found = [trial for trial in record["clean"] if trial["finding"] is not None]
    names = anchors(f"clean-{_setting(trial)}" for trial in found)
    for trial, anchor in zip(found, names, strict=True):
        yield Card(
            anchor=anchor,
            title=_setting(trial),
            source=trial["source"],
            status="violated",
            status_told="Nothing may be found on the clean subject.",
            sound=False,
            mechanism="",
            facts=tuple(_settings(trial["trial"])),
            expected="",
            masked_by="",
            threads=(),
            counts=tuple(_counts(trial)),
            finding=_finding(trial["finding"], anchor, None),
        )


def _setting(hunt: Data) -> str:
    """Name a clean trial by what tells it from the others."""
    trial = hunt["trial"]
    return (
        f"clean {trial['runner']}, {trial['preset']}, {trial['era']}, page {trial['page_size']},"
        f" {trial['dtype']}, {hunt['source']}"
    )


def _settings(trial: Data) -> Iterator[Fact]:
    for name in ("runner", "preset", "era", "dtype", "device"):
        yield Fact(name, str(trial[name]))
    yield Fact("page size", str(trial["page_size"]))
    yield Fact("slots", f"{trial['full_slots']} full, {trial['swa_slots']} SWA")
    yield Fact("request rows", str(trial["rows"]))
    yield Fact("buckets", words(trial["buckets"]))


def _finding(finding: Data | None, anchor: str, expected: str | None) -> Finding | None:
    if finding is None:
        return None
    seen = [_seen(violation) for violation in finding["violations"]]
    lead = next((each for each in seen if each.property == expected), seen[0])
    return Finding(
        anchor=anchor,
        lead=lead,
        others=tuple(each for each in seen if each is not lead),
        timeline=lay_out(finding["timeline"]),
        schedule=_schedule_text(finding["schedule"]),
        case_file=finding["case_file"],
        reproduce=finding["reproduce"],
    )


def _seen(violation: Data) -> Seen:
    comparison = compare(violation["property"], violation["where"])
    compared = ("eager_bits", "graph_bits") if comparison is not None else ()
    return Seen(
        property=violation["property"],
        step=violation["step"],
        told=violation["told"],
        comparison=comparison,
        facts=tuple(
            Fact(name.replace("_", " "), _value(value))
            for name, value in violation["where"].items()
            if name not in compared
        ),
    )


def _value(value: Any) -> str:
    """Return a JSON value in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        more = f" and {len(value) - MOST_VALUES} more" if len(value) > MOST_VALUES else ""
        between = "; " if any(isinstance(each, str) for each in value) else ", "
        return between.join(_value(each) for each in value[:MOST_VALUES]) + more
    return value if isinstance(value, str) else json.dumps(value)


def _schedule_text(schedule: Data) -> str:
    """Return a schedule as JSON text, one step a line."""
    steps = ",\n".join(f"  {json.dumps(step)}" for step in schedule["steps"])
    rest = {name: value for name, value in schedule.items() if name != "steps"}
    head = json.dumps(rest)[:-1] + ", " if rest else "{"
    return f'{head}"steps": [\n{steps}\n]}}'


def _or_dash(value: Any) -> str:
    return "–" if value is None else str(value)
