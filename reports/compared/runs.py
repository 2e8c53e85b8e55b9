"""Compares two run records: what is new, worse, gone, fixed or changed.

This module has no markup and judges nothing. It compares the statuses in the records.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paritybit.harness.records.schema import BugRow, CleanRow, Record, TrialRow
from paritybit.reports.cards import Card, bug_cards, clean_cards
from paritybit.reports.causes import cause_of
from paritybit.reports.compared.figures import Figure, coverage, environment, events, speed
from paritybit.reports.compared.kinds import (
    ALARMING,
    CHANGED,
    FIXED,
    GONE,
    KINDS,
    LOST,
    NEW,
    OPEN,
    STAYS,
    WORSE,
    Name,
    counted,
    distinct_names,
    gravity,
    verdict,
)
from paritybit.reports.texts import sized, words
from paritybit.reports.verdicts import judges_coverage, sound

GRAVEST = (
    "red",
    "fails without the bug too",
    "undeclared state",
    "device lost",
    "missed",
    "wrong property",
    "affected after all",
    "warned at capture",
    "not reproduced",
    "vacuous",
    "failed",
)
"""Unexpected statuses of hunts and clean trials, the most severe first."""

NO_VERDICT = "failed"
"""The status after an internal error."""

INTERRUPTED = "interrupted"

Row = CleanRow | BugRow


@dataclass(frozen=True)
class Change:
    """A hunt or clean trial that changed, or is wrong in both runs.

    `cards` has the card of each run, or None if the run has no finding. `differs` lists what
    changed, or is '' if the kind says it all.
    """

    kind: str
    name: str
    differs: str
    before: str
    after: str
    cards: tuple[Card | None, Card | None]
    rank: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Comparison:
    """The comparison of two runs.

    - `names`: the names of both runs.
    - `message`: the result in one sentence.
    - `lost`: hunts that were right in the earlier run and not tested in the later one.
    - `added`: hunts that only the later run tested.
    """

    names: tuple[str, str]
    message: str
    changes: tuple[Change, ...]
    lost: tuple[str, ...]
    added: tuple[str, ...]
    verdicts: Figure
    environment: tuple[Figure, ...]
    coverage: tuple[Figure, ...]
    speed: tuple[Figure, ...]

    @property
    def alarming(self) -> bool:
        """Whether anything is new or worse."""
        return any(change.kind in ALARMING for change in self.changes)

    @property
    def unsettled(self) -> bool:
        """Whether the later run has no verdict where the earlier one had one."""
        return bool(self.lost) or any(change.kind in LOST for change in self.changes)

    @property
    def alone(self) -> Mapping[str, tuple[str, ...]]:
        """Hunts without an unexpected result that only one run tested, by title."""
        return {
            "right in the earlier run, not tested in the later run": self.lost,
            "tested only in the later run": self.added,
        }

    @property
    def verdict(self) -> str:
        """The verdict in a few words."""
        return verdict([change.kind for change in self.changes], lost=len(self.lost))


def compare_runs(before: Record, after: Record) -> Comparison:
    """Return the comparison of two records."""
    hunts = _hunts(before), _hunts(after)
    alike = _device(before) == _device(after)
    kinds = {key: _kind_of(key, hunts, alike=alike) for key in {**hunts[0], **hunts[1]}}
    differing = [key for key, kind in kinds.items() if kind is not None]
    cards = (
        _cards(before, map(hunts[0].get, differing)),
        _cards(after, map(hunts[1].get, differing)),
    )
    found = [_change(key, hunts, cards, alike=alike) for key in differing]
    found += _unreached(before, after)
    order = list(KINDS)
    changes = sorted(found, key=lambda change: (order.index(change.kind), change.rank))
    both = [key for key in hunts[0] if key in hunts[1]]
    lost = [key for key, hunt in hunts[0].items() if key not in hunts[1] and not _wrong(hunt)]
    added = [key for key in hunts[1] if key not in hunts[0]]
    return Comparison(
        names=distinct_names(_run_name(before), _run_name(after)),
        message=_message(changes, [len(both), len(hunts[0]) - len(both), len(added)], after),
        changes=tuple(changes),
        lost=tuple(map(_name, lost)),
        added=tuple(map(_name, added)),
        verdicts=Figure("verdict", before.verdict, after.verdict),
        environment=tuple(environment(before, after)),
        coverage=tuple(coverage(before, after)),
        speed=tuple(speed(before, after)),
    )


def _message(changes: Sequence[Change], counts: Sequence[int], after: Record) -> str:
    """Return the result of a comparison in one sentence.

    `counts` has the numbers of hunts tested in both runs, only the earlier, and only the later.
    """
    said = counted(change.kind for change in changes)
    places = ("in both runs", "only in the earlier run", "only in the later run")
    tried = [f"{count} {place}" for count, place in zip(counts, places, strict=True) if count]
    cut = "; the later run was interrupted" if after.verdict == INTERRUPTED else ""
    return f"{said}; hunts and clean trials: {', '.join(tried) or 'none'}{cut}"


def _run_name(record: Record) -> Name:
    environment = record.environment
    return Name(
        environment.commit, environment.dirty, environment.device_name, started=record.started
    )


def _device(record: Record) -> tuple[str, str]:
    return record.environment.device, record.environment.device_name


@dataclass(frozen=True)
class Key:
    """The identity of a hunt: its trial without the device, and the source of schedules."""

    bugs: tuple[str, ...]
    runner: str
    preset: str
    shape: str
    scheme: str
    page_size: int
    dtype: str
    overlap: bool
    source: str


Hunts = Mapping[Key, Row]


def _hunts(record: Record) -> dict[Key, Row]:
    """Return the hunts and clean trials of a record by key.

    If several have the same key, the most severe one counts.
    """
    found: dict[Key, Row] = {}
    rows: tuple[Row, ...] = (*record.clean, *record.bugs)
    for row in rows:
        key = _key(row)
        found[key] = min(found.get(key, row), row, key=_rank)
    return found


def _cards(record: Record, hunts: Iterable[Row | None]) -> dict[int, Card]:
    """Return the cards of hunts with findings, by the `id` of their rows."""
    wanted = {id(hunt) for hunt in hunts if hunt is not None and hunt.finding is not None}
    clean = tuple(row for row in record.clean if id(row) in wanted)
    bugs = tuple(row for row in record.bugs if id(row) in wanted)
    some = replace(record, clean=clean, bugs=bugs)
    cards = zip((*clean, *bugs), (*clean_cards(some), *bug_cards(some)), strict=True)
    return {id(row): card for row, card in cards}


def _key(hunt: TrialRow) -> Key:
    trial = hunt.trial
    return Key(
        bugs=trial.bugs,
        runner=trial.runner,
        preset=trial.preset,
        shape=trial.shape,
        scheme=trial.scheme,
        page_size=trial.page_size,
        dtype=trial.dtype,
        overlap=trial.overlap,
        source=hunt.source,
    )


def _name(key: Key) -> str:
    return (
        f"{', '.join(key.bugs) or 'clean'}@{key.runner} ({sized(key)}, {key.scheme},"
        f" page size {key.page_size}, {key.dtype}, {key.source}"
        f"{', steps overlap' if key.overlap else ''})"
    )


def _wrong(row: Row) -> bool:
    """Whether a hunt or a clean trial has an unexpected status."""
    return not sound(row.status)


def _rank(row: Row) -> tuple[int, int]:
    """Return the severity of a hunt's end. Lower is more severe."""
    if not _wrong(row):
        return len(GRAVEST), 0
    return GRAVEST.index(row.status), gravity(_violated(row))


def _violated(row: Row) -> list[str]:
    """Return the properties that a hunt's finding violates, in order."""
    seen = row.finding.violations if row.finding is not None else ()
    return list(dict.fromkeys(violation.property for violation in seen))


def _kind_of(key: Key, hunts: tuple[Hunts, Hunts], *, alike: bool) -> str | None:
    """Return the kind of change of a hunt, or None if it is right and unchanged.

    `alike` says that both runs used the same device, so bits can be compared.
    """
    before, after = hunts[0].get(key), hunts[1].get(key)
    differs = _differs(before, after, alike=alike) if before and after else []
    return _kind(before, after) or (CHANGED if differs else None)


def _change(
    key: Key,
    hunts: tuple[Hunts, Hunts],
    cards: tuple[Mapping[int, Card], Mapping[int, Card]],
    *,
    alike: bool,
) -> Change:
    """Return the change of a hunt that differs or is wrong, with the cards of its findings."""
    before, after = hunts[0].get(key), hunts[1].get(key)
    differs = _differs(before, after, alike=alike) if before and after else []
    kind = _kind(before, after) or CHANGED
    return Change(
        kind=kind,
        name=_name(key),
        differs=words(differs) if differs and kind in {WORSE, STAYS, CHANGED} else "",
        before=_outcome(before),
        after=_outcome(after),
        cards=(cards[0].get(id(before)), cards[1].get(id(after))),
        rank=min(_rank(row) for row in (before, after) if row is not None),
    )


def _kind(before: Row | None, after: Row | None) -> str | None:
    """Return the kind of change of a hunt by its status, or None if it is right in all runs."""
    was_wrong = before is not None and _wrong(before)
    if after is None:
        return GONE if was_wrong else None
    if not _wrong(after):
        return FIXED if was_wrong else None
    was_open = before is not None and before.status == NO_VERDICT
    if after.status == NO_VERDICT:
        return STAYS if was_open else OPEN
    if before is None or not was_wrong or was_open:
        return NEW
    return WORSE if _worse(before, after) else STAYS


def _worse(before: Row, after: Row) -> bool:
    """Whether a hunt that is wrong in both runs is more severe, or has another cause."""
    order = GRAVEST.index(before.status), GRAVEST.index(after.status)
    if order[0] != order[1]:
        return order[1] < order[0]
    old, new = before.finding, after.finding
    if old is None or new is None:
        return new is not None
    if old.explanation is None:  # The cause is not known, so compare the violations.
        return not set(_violated(before)) & set(_violated(after))
    return cause_of(before) != cause_of(after)


def _differs(before: Row, after: Row, *, alike: bool) -> list[str]:
    """Return the names of the parts in which two ends of a hunt differ."""
    parts = _parts(before, alike=alike), _parts(after, alike=alike)
    return [name for name in parts[0] if parts[0][name] != parts[1][name]]


def _parts(hunt: Row, *, alike: bool) -> dict[str, Any]:
    """Return the parts of a hunt that are compared, by name.

    On different devices bits may differ, and so may the first place of a violation.
    """
    of_both = {"status": hunt.status, "properties": _violated(hunt)}
    if not alike:
        return of_both if _wrong(hunt) else {"status": hunt.status}
    finding = hunt.finding
    violations = finding.violations if finding is not None else ()
    explanation = finding.explanation if finding is not None else None
    return of_both | {
        "step": [violation.step for violation in violations],
        "what was seen": [violation.message for violation in violations],
        "schedule": finding.schedule if finding is not None else None,
        "proof": explanation.proof if explanation is not None else None,
        "error of the explainer": finding.error if finding is not None else None,
    }


def _outcome(hunt: Row | None) -> str:
    """Describe the end of a hunt."""
    if hunt is None:
        return "not tried"
    if hunt.finding is None:
        return f"{hunt.status}: {hunt.raised}" if hunt.raised else hunt.status
    steps = len(hunt.finding.schedule.steps)
    return f"{hunt.status}: {words(_violated(hunt))}, in {steps} step{'s' * (steps != 1)}"


NEVER = "never reached"


def _unreached(before: Record, after: Record) -> Iterator[Change]:
    """Yield changes for required states that at least one run never reached."""
    missed = _never_reached(before), _never_reached(after)
    counts = events(before), events(after)
    for name in dict.fromkeys((*missed[0], *missed[1])):
        if name in missed[1]:
            kind = STAYS if name in missed[0] else NEW
        else:
            kind = FIXED if judges_coverage(after) and counts[1][name] else GONE
        cells = [f"reached {count[name]:,} times" if count[name] else NEVER for count in counts]
        last = len(GRAVEST), 0
        yield Change(kind, f"coverage: {name}", "", cells[0], cells[1], (None, None), last)


def _never_reached(record: Record) -> list[str]:
    """Return the required states that a run never reached."""
    counts = events(record)
    return [name for name in record.required_events if judges_coverage(record) and not counts[name]]
