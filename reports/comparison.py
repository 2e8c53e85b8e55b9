"""Two run records side by side: what is new, gone or changed from the one to the other.

Knows the record. Does not know markup or the terminal, and judges nothing: of each
hunt it takes the record's word, and says where the words differ.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.records.schema import Record, TrialRow
from reports.cards import Card, bug_cards, clean_cards
from reports.texts import duration, or_dash, words

KINDS = ("new", "changed", "gone")
"""Of findings, the gravest first. What was not tried in both runs is never gone."""


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
    """Both runs; `message` says it in a sentence. `untried` hunts are of one run alone."""

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


def compare_runs(before: Record, after: Record) -> Comparison:
    """Return what differs between two records."""
    hunts = _hunts(before), _hunts(after)
    cards = _cards(before), _cards(after)
    both = [key for key in hunts[0] if key in hunts[1]]
    found = [_change(key, hunts, cards) for key in {**hunts[0], **hunts[1]}]
    changes = tuple(
        change for kind in KINDS for change in found if change is not None and change.kind == kind
    )
    counts = Counter(change.kind for change in changes)
    message = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
    untried = [_name(key) for of_run in hunts for key in of_run if key not in both]
    return Comparison(
        message=(
            f"{message}; {len(both)} hunts and clean trials in both runs, {len(untried)} in one"
        ),
        changes=changes,
        untried=tuple(untried),
        verdicts=Row("verdict", before.verdict, after.verdict),
        environment=tuple(_environment(before, after)),
        coverage=tuple(_coverage(before, after)),
        speed=tuple(_speed(before, after)),
    )


@dataclass(frozen=True)
class Key:
    """What makes two hunts the same hunt: what was on trial, and where schedules came from."""

    bugs: tuple[str, ...]
    runner: str
    preset: str
    scheme: str
    page_size: int
    dtype: str
    overlap: bool
    source: str


Hunts = Mapping[Key, TrialRow]


def _hunts(record: Record) -> dict[Key, TrialRow]:
    """Return the hunts and clean trials of a record by what makes them the same."""
    return {_key(hunt): hunt for hunt in (*record.clean, *record.bugs)}


def _cards(record: Record) -> dict[Key, Card]:
    """Return the cards of the findings of a record."""
    found = [trial for trial in record.clean if trial.finding is not None]
    pairs: list[tuple[TrialRow, Card]] = [
        *zip(found, clean_cards(record), strict=True),
        *zip(record.bugs, bug_cards(record), strict=True),
    ]
    return {_key(hunt): card for hunt, card in pairs if card.finding is not None}


def _key(hunt: TrialRow) -> Key:
    trial = hunt.trial
    return Key(
        bugs=trial.bugs,
        runner=trial.runner,
        preset=trial.preset,
        scheme=trial.scheme,
        page_size=trial.page_size,
        dtype=trial.dtype,
        overlap=trial.overlap,
        source=hunt.source,
    )


def _name(key: Key) -> str:
    return (
        f"{', '.join(key.bugs) or 'clean'}@{key.runner} ({key.preset}, {key.scheme},"
        f" page size {key.page_size}, {key.dtype}, {key.source}"
        f"{', steps overlap' if key.overlap else ''})"
    )


def _change(
    key: Key, hunts: tuple[Hunts, Hunts], cards: tuple[Mapping[Key, Card], Mapping[Key, Card]]
) -> Change | None:
    """Return how a hunt went differently, None where it did not, or has a finding in no run."""
    before, after = hunts[0].get(key), hunts[1].get(key)
    parts = _parts(before), _parts(after)
    differs = [name for name in parts[0] if parts[0][name] != parts[1][name]]
    found_before = before is not None and before.finding is not None
    found_after = after is not None and after.finding is not None
    if found_after and not found_before:
        kind = "new"
    elif found_before and not found_after and after is not None:
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


def _parts(hunt: TrialRow | None) -> dict[str, Any]:
    """Return what of a hunt is compared, by what it is called."""
    finding = hunt.finding if hunt is not None else None
    violations = finding.violations if finding is not None else ()
    explanation = finding.explanation if finding is not None else None
    return {
        "status": hunt.status if hunt is not None else None,
        "properties": [violation.property for violation in violations],
        "step": [violation.step for violation in violations],
        "what was seen": [violation.message for violation in violations],
        "schedule": finding.schedule if finding is not None else None,
        "proof": explanation.proof if explanation is not None else None,
        "error of the explainer": finding.error if finding is not None else None,
    }


def _outcome(hunt: TrialRow | None) -> str:
    """Say in words how a hunt ended."""
    if hunt is None:
        return "not tried"
    if hunt.finding is None:
        return hunt.status
    seen = words(dict.fromkeys(violation.property for violation in hunt.finding.violations))
    steps = len(hunt.finding.schedule.steps)
    return f"{hunt.status}: {seen}, in {steps} step{'s' if steps != 1 else ''}"


def _environment(before: Record, after: Record) -> Iterator[Row]:
    """Yield what the runs do not have in common."""
    settings = {
        "command": (before.command, after.command),
        "seed": (before.seed, after.seed),
        "examples": (before.examples, after.examples),
    }
    versions = asdict(before.environment), asdict(after.environment)
    both = settings | {name: (versions[0][name], versions[1][name]) for name in versions[0]}
    for name, (old, new) in both.items():
        if old != new:
            yield Row(name.replace("_", " "), or_dash(old), or_dash(new))


def _coverage(before: Record, after: Record) -> Iterator[Row]:
    """Yield how often the clean trials of each run reached each state."""
    counts = _events(before), _events(after)
    for name in sorted(counts[0] | counts[1]):
        yield Row(name, f"{counts[0][name]:,}", f"{counts[1][name]:,}")


def _events(record: Record) -> Counter[str]:
    counts = Counter(dict.fromkeys(record.required_events, 0))
    for trial in record.clean:
        counts.update(trial.events)
    return counts


def _speed(before: Record, after: Record) -> Iterator[Row]:
    """Yield the time both runs took, and the clean steps a second of each runner."""
    yield Row("time taken", duration(before.seconds), duration(after.seconds))
    yield Row("schedules to detection, mean", _mean_drawn(before), _mean_drawn(after))
    rates = _rates(before), _rates(after)
    for runner in rates[0] | rates[1]:
        values = [f"{rate[runner]:.0f}" if runner in rate else "–" for rate in rates]
        yield Row(f"{runner}, clean steps a second", values[0], values[1])


def _mean_drawn(record: Record) -> str:
    drawn = [bug.schedules_to_detection for bug in record.bugs]
    detected = [schedules for schedules in drawn if schedules is not None]
    return f"{sum(detected) / len(detected):.1f}" if detected else "–"


def _rates(record: Record) -> dict[str, float]:
    """Return the clean steps a second, by runner."""
    trials: dict[str, list[TrialRow]] = {}
    for trial in record.clean:
        trials.setdefault(trial.trial.runner, []).append(trial)
    return {runner: _rate(of_runner) for runner, of_runner in trials.items()}


def _rate(trials: Sequence[TrialRow]) -> float:
    seconds = sum(trial.seconds for trial in trials)
    return sum(trial.steps for trial in trials) / seconds if seconds else 0.0
