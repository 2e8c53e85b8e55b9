"""Two records of engines' trials side by side: what is new, worse, gone or still there.

Knows the record of a trial. Does not know markup or the terminal, and judges nothing: of each
finding and leg it takes the record's word.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

KINDS = ("new", "worse", "not told", "gone", "still there")
"""Of findings, the gravest first. One that the later trial did not ask about is not told."""

TRIED, UNTRIED, UNDECIDED = "tried", "not tried", "undecided"
PLAYED = ("schedules", "steps", "replays", "padded")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """A finding of either trial: a property that a runner violated on a model.

    `before` and `after` say how first, and which fault classes explain it, None in the trial
    without it. A listed one is no verdict, and alarms nobody.
    """

    kind: str
    runner: str
    preset: str
    violated: str
    before: str | None
    after: str | None
    listed: bool

    @property
    def alarming(self) -> bool:
        """Whether it is new or worse, and counts."""
        return self.kind in {"new", "worse"} and not self.listed


@dataclass(frozen=True)
class Row:
    """Something of both trials, and whether it is worse in the later one."""

    name: str
    before: str
    after: str
    worse: bool = False


@dataclass(frozen=True)
class Comparison:
    """Both trials; `message` says it in a sentence.

    `legs`, `asked` and `faults` are what differs of how legs ended, of which property was
    asked of a leg, and of the verdicts on fault classes. `figures` are of both trials whole.
    """

    message: str
    changes: tuple[Change, ...]
    legs: tuple[Row, ...]
    asked: tuple[Row, ...]
    faults: tuple[Row, ...]
    figures: tuple[Row, ...]

    @property
    def alarming(self) -> bool:
        """Whether anything is new or worse."""
        rows = (*self.legs, *self.asked, *self.faults)
        return any(change.alarming for change in self.changes) or any(row.worse for row in rows)


def compare_trials(before: Record, after: Record) -> Comparison:
    """Return what differs between two records of trials.

    Raises LookupError, TypeError or AttributeError for a record that lacks something.
    """
    changes = sorted(_changes(before, after), key=lambda change: KINDS.index(change.kind))
    legs, asked = tuple(_legs(before, after)), tuple(_asked(before, after))
    faults = tuple(_faults(before, after))
    counts = Counter(change.kind for change in changes)
    worse = sum(row.worse for row in (*legs, *asked, *faults))
    said = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
    return Comparison(
        message=(
            f"{before['engine']} against {after['engine']}: findings: {said}; legs, properties"
            f" asked and verdicts that are worse: {worse}"
        ),
        changes=tuple(changes),
        legs=legs,
        asked=asked,
        faults=faults,
        figures=tuple(_figures(before, after)),
    )


@dataclass(frozen=True)
class Key:
    """What makes two findings the same. A listed one is known of every engine of its kind."""

    runner: str
    preset: str
    violated: str
    listed: bool


def _changes(before: Record, after: Record) -> Iterator[Change]:
    """Yield every finding of either trial."""
    found = _findings(before), _findings(after)
    for key in {**found[0], **found[1]}:
        old, new = found[0].get(key), found[1].get(key)
        yield Change(
            kind=_kind(key, (old, new), (before, after)),
            runner=key.runner,
            preset=key.preset,
            violated=key.violated,
            before=_told(old),
            after=_told(new),
            listed=key.listed,
        )


def _findings(record: Record) -> dict[Key, Record]:
    """Return the findings of a trial; of several of one key the first."""
    found: dict[Key, Record] = {}
    for one in record["answer"]["findings"]:
        key = Key(one["runner"], one["preset"], one["property"], one["listed"] is not None)
        found.setdefault(key, one)
    return found


def _kind(
    key: Key, found: tuple[Record | None, Record | None], records: tuple[Record, Record]
) -> str:
    """Return what became of a finding.

    It is worse where fault classes explained it and none does, or others do: it is then
    another fault under the same name.
    """
    old, new = found
    if old is None:
        return "new"
    if new is None:
        return "gone" if _still_asked(key, *records) else "not told"
    classes = set(old["faults"]), set(new["faults"])
    another = bool(classes[0]) and (not classes[1] or bool(classes[1] - classes[0]))
    return "worse" if another else "still there"


def _still_asked(key: Key, before: Record, after: Record) -> bool:
    """Whether the later trial tells of what the earlier one found.

    A leg of that runner and model was tried, and nothing keeps the property from being asked
    of it that did not in the earlier trial.
    """
    unasked = _unasked(before, key)
    return any(
        key.violated not in of_leg or any(key.violated in earlier for earlier in unasked)
        for of_leg in _unasked(after, key)
    )


def _unasked(record: Record, key: Key) -> list[Mapping[str, str]]:
    """Return what could not be asked of each leg of a runner and a model that was decided."""
    return [
        leg["unasked"]
        for leg in record["answer"]["legs"]
        if (leg["runner"], leg["preset"]) == (key.runner, key.preset) and leg["undecided"] is None
    ]


def _told(finding: Record | None) -> str | None:
    if finding is None:
        return None
    classes = f" ({', '.join(finding['faults'])})" if finding["faults"] else ""
    listed = f"; listed: {finding['listed']}" if finding["listed"] is not None else ""
    return f"{finding['message']}{classes}{listed}"


def _legs(before: Record, after: Record) -> Iterator[Row]:
    """Yield the legs that ended otherwise.

    Worse are those that are tried no longer, and those that have become undecided.
    """
    runners = {**_runner_of(before), **_runner_of(after)}
    for leg, runner in runners.items():
        old, new = _ending(before, leg, runner), _ending(after, leg, runner)
        if old != new:
            became_open = new.startswith(UNDECIDED) and not old.startswith(UNDECIDED)
            yield Row(leg, old, new, worse=old == TRIED or became_open)


def _runner_of(record: Record) -> dict[str, str]:
    """Return the runner of each leg that a trial planned."""
    answer = record["answer"]
    return {entry["leg"]: entry["runner"] for entry in (*answer["legs"], *answer["undecided"])}


def _ending(record: Record, leg: str, runner: str) -> str:
    """Say how a leg ended in a trial."""
    answer = record["answer"]
    for entry in answer["undecided"]:
        if entry["leg"] == leg:
            return f"{UNDECIDED}: {entry['reason']}"
    if any(entry["leg"] == leg for entry in answer["legs"]):
        return TRIED
    for entry in answer["lacking"]:
        if entry["runner"] == runner:
            return f"no such runner: {entry['reason']}"
    return UNTRIED


def _asked(before: Record, after: Record) -> Iterator[Row]:
    """Yield the properties that one trial could ask a leg and the other could not."""
    legs = [
        {leg["leg"]: leg["unasked"] for leg in record["answer"]["legs"]}
        for record in (before, after)
    ]
    for leg in [leg for leg in legs[0] if leg in legs[1]]:
        old, new = legs[0][leg], legs[1][leg]
        for name in sorted(old.keys() ^ new.keys()):
            cells = [f"not asked: {of[name]}" if name in of else "asked" for of in (old, new)]
            yield Row(f"{name} of {leg}", cells[0], cells[1], worse=name in new)


def _faults(before: Record, after: Record) -> Iterator[Row]:
    """Yield the fault classes and runners of which the verdicts differ."""
    found = [
        {(one["fault"], one["runner"]): one["verdict"] for one in record["answer"]["faults"]}
        for record in (before, after)
    ]
    for key in {**found[0], **found[1]}:
        old, new = (verdicts.get(key, UNTRIED) for verdicts in found)
        if old != new:
            worse = new in {"present", UNDECIDED} and old != "present"
            yield Row(f"{key[0]} on {key[1]}", old, new, worse=worse)


def _figures(before: Record, after: Record) -> Iterator[Row]:
    """Yield what was tried, on what, and how much was played."""
    for name in ("engine", "command", "verdict"):
        yield Row(name, str(before[name]), str(after[name]))
    for name in sorted(before["environment"].keys() | after["environment"].keys()):
        old, new = (str(record["environment"].get(name, "–")) for record in (before, after))
        if old != new:
            yield Row(name.replace("_", " "), old, new)
    for name in PLAYED:
        old, new = (
            f"{sum(leg[name] for leg in record['answer']['legs']):,}" for record in (before, after)
        )
        yield Row(name, old, new)
    old, new = (f"{record['answer']['seconds']:.0f}" for record in (before, after))
    yield Row("seconds", old, new)
