"""Two run records side by side: what is new, gone or changed from the one to the other.

Knows the record's JSON. Does not know markup or the terminal, and judges nothing: of each
hunt it takes the record's word, and says where the words differ.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.cards import Card, bug_cards, clean_cards
from reports.texts import duration, or_dash, words

Data = Mapping[str, Any]

KINDS = ("new", "changed", "gone")
"""Of findings, the gravest first. What was not tried in both runs is never gone."""

IDENTITY = ("runner", "preset", "scheme", "page_size", "dtype")
"""What of a trial's settings, beside its bugs, makes two hunts the same hunt."""


@dataclass(frozen=True)
class Change:
    """One hunt that went differently. A card is None where the run has no finding of it.

    `differs` names in what a finding has changed, '' for one that is new or gone.
    """

    kind: str
    name: str
    differs: str
    before: str
    after: str
    cards: tuple[Card | None, Card | None]


@dataclass(frozen=True)
class Row:
    """A figure or a fact of both runs."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Comparison:
    """Both runs; `told` says it in a sentence. `untried` hunts are of one run alone."""

    message: str
    changes: tuple[Change, ...]
    untried: tuple[str, ...]
    verdicts: Row
    environment: tuple[Row, ...]
    coverage: tuple[Row, ...]
    speed: tuple[Row, ...]

    @property
    def alarming(self) -> bool:
        """Whether any finding is new or changed."""
        return any(change.kind != "gone" for change in self.changes)


def compare_runs(before: Data, after: Data) -> Comparison:
    """Return what differs between two records. Raises LookupError for one that lacks something."""
    hunts = _hunts(before), _hunts(after)
    cards = _cards(before), _cards(after)
    both = [key for key in hunts[0] if key in hunts[1]]
    found = [_change(key, hunts, cards) for key in {**hunts[0], **hunts[1]}]
    changes = tuple(
        change for kind in KINDS for change in found if change is not None and change.kind == kind
    )
    counts = Counter(change.kind for change in changes)
    message = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
    untried = [_name(key) for each in hunts for key in each if key not in both]
    return Comparison(
        message=f"{message}; {len(both)} hunts and clean trials in both runs, {len(untried)} in one",
        changes=changes,
        untried=tuple(untried),
        verdicts=Row("verdict", before["verdict"], after["verdict"]),
        environment=tuple(_environment(before, after)),
        coverage=tuple(_coverage(before, after)),
        speed=tuple(_speed(before, after)),
    )


Key = tuple[str, ...]
Hunts = Mapping[Key, Data]


def _hunts(record: Data) -> dict[Key, Data]:
    """Return the hunts and clean trials of a record by what makes them the same."""
    return {_key(hunt): hunt for hunt in [*record["clean"], *record["bugs"]]}


def _cards(record: Data) -> dict[Key, Card]:
    """Return the cards of the findings of a record."""
    found = [trial for trial in record["clean"] if trial["finding"] is not None]
    pairs = [
        *zip(found, clean_cards(record), strict=True),
        *zip(record["bugs"], bug_cards(record), strict=True),
    ]
    return {_key(hunt): card for hunt, card in pairs if card.finding is not None}


def _key(hunt: Data) -> Key:
    trial = hunt["trial"]
    settings = (str(trial[name]) for name in IDENTITY)
    return (*settings, ", ".join(trial["bugs"]), hunt["source"])


def _name(key: Key) -> str:
    runner, preset, scheme, page_size, dtype, bugs, source = key
    return (
        f"{bugs or 'clean'}@{runner} ({preset}, {scheme}, page size {page_size}, {dtype}, {source})"
    )


def _change(
    key: Key, hunts: tuple[Hunts, Hunts], cards: tuple[Mapping[Key, Card], Mapping[Key, Card]]
) -> Change | None:
    """Return how a hunt went differently, None where it did not, or has a finding in no run."""
    before, after = (each.get(key) for each in hunts)
    parts = _parts(before), _parts(after)
    differs = [name for name in parts[0] if parts[0][name] != parts[1][name]]
    found = [each is not None and each["finding"] is not None for each in (before, after)]
    if found == [False, True]:
        kind = "new"
    elif found == [True, False] and after is not None:
        kind = "gone"
    elif before is not None and after is not None and differs:
        kind = "changed"
    else:
        return None
    return Change(
        kind=kind,
        name=_name(key),
        differs=words(differs) if kind == "changed" else "",
        before=_outcome(before),
        after=_outcome(after),
        cards=(cards[0].get(key), cards[1].get(key)),
    )


def _parts(hunt: Data | None) -> dict[str, Any]:
    """Return what of a hunt is compared, by what it is called."""
    finding = (hunt or {}).get("finding") or {}
    violations = finding.get("violations", [])
    explanation = finding.get("explanation") or {}
    return {
        "status": (hunt or {}).get("status"),
        "properties": [each["property"] for each in violations],
        "step": [each["step"] for each in violations],
        "what was seen": [each["message"] for each in violations],
        "schedule": finding.get("schedule"),
        "proof": explanation.get("proof"),
    }


def _outcome(hunt: Data | None) -> str:
    """Say in words how a hunt ended."""
    if hunt is None:
        return "not tried"
    if hunt["finding"] is None:
        return str(hunt["status"])
    violations = hunt["finding"]["violations"]
    seen = words(dict.fromkeys(each["property"] for each in violations))
    steps = len(hunt["finding"]["schedule"]["steps"])
    return f"{hunt['status']}: {seen}, in {steps} step{'s' if steps != 1 else ''}"


def _environment(before: Data, after: Data) -> Iterator[Row]:
    """Yield what the runs do not have in common."""
    settings = {name: (before[name], after[name]) for name in ("command", "seed", "examples")}
    names = dict.fromkeys([*before["environment"], *after["environment"]])
    versions = {
        name: (before["environment"].get(name), after["environment"].get(name)) for name in names
    }
    for name, (old, new) in (settings | versions).items():
        if old != new:
            yield Row(name.replace("_", " "), or_dash(old), or_dash(new))


def _coverage(before: Data, after: Data) -> Iterator[Row]:
    """Yield how often the clean trials of each run reached each state."""
    counts = _events(before), _events(after)
    for name in sorted(counts[0] | counts[1]):
        yield Row(name, f"{counts[0][name]:,}", f"{counts[1][name]:,}")


def _events(record: Data) -> Counter[str]:
    counts = Counter(dict.fromkeys(record["required_events"], 0))
    for trial in record["clean"]:
        counts.update(trial["events"])
    return counts


def _speed(before: Data, after: Data) -> Iterator[Row]:
    """Yield the time both runs took, and the clean steps a second of each runner."""
    yield Row("time taken", duration(before["seconds"]), duration(after["seconds"]))
    yield Row("schedules to detection, mean", _mean_drawn(before), _mean_drawn(after))
    rates = _rates(before), _rates(after)
    for runner in rates[0] | rates[1]:
        values = [f"{each[runner]:.0f}" if runner in each else "–" for each in rates]
        yield Row(f"{runner}, clean steps a second", values[0], values[1])


def _mean_drawn(record: Data) -> str:
    drawn = [bug["schedules_to_detection"] for bug in record["bugs"]]
    caught = [each for each in drawn if each is not None]
    return f"{sum(caught) / len(caught):.1f}" if caught else "–"


def _rates(record: Data) -> dict[str, float]:
    """Return the clean steps a second, by runner."""
    trials: dict[str, list[Data]] = {}
    for trial in record["clean"]:
        trials.setdefault(trial["trial"]["runner"], []).append(trial)
    return {runner: _rate(each) for runner, each in trials.items()}


def _rate(trials: Sequence[Data]) -> float:
    seconds = sum(trial["seconds"] for trial in trials)
    return sum(trial["steps"] for trial in trials) / seconds if seconds else 0.0
