"""Two records of engines' trials side by side: what is new, worse, gone, mended or still there.

Knows the record of a trial. Does not know markup or the terminal, and judges nothing: of each
finding and leg it takes the record's word.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paritybit.reports.compared.kinds import (
    ALARMING,
    GONE,
    KINDS,
    LOST,
    MENDED,
    NEW,
    STAYS,
    WORSE,
    Name,
    counted,
    distinct_names,
    gravity,
    verdict,
)
from paritybit.reports.verdicts import of_faults

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
        return self.kind in ALARMING and not self.listed

    @property
    def differs(self) -> str:
        """In what it differs where both trials have it: what they say of it shows that."""
        return ""

    @property
    def name(self) -> str:
        """The finding in words."""
        return f"{self.violated} on {self.runner}, {self.preset}"


@dataclass(frozen=True)
class Row:
    """Something of both trials.

    It is worse in the later one, or `lost`: the earlier trial could tell, the later cannot.
    """

    name: str
    before: str
    after: str
    worse: bool = False
    lost: bool = False

    @property
    def effect(self) -> str:
        """What it means, '' for nothing."""
        return "worse" if self.worse else "no verdict now" if self.lost else ""


@dataclass(frozen=True)
class Comparison:
    """Both trials by name; `message` says it in a sentence.

    `legs`, `asked` and `faults` are what differs of how legs ended, of which property was
    asked of a leg, and of the verdicts on fault classes. `figures` are of both trials whole.
    """

    names: tuple[str, str]
    message: str
    changes: tuple[Change, ...]
    legs: tuple[Row, ...]
    asked: tuple[Row, ...]
    faults: tuple[Row, ...]
    figures: tuple[Row, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """All that differs beside findings."""
        return (*self.legs, *self.asked, *self.faults)

    @property
    def alarming(self) -> bool:
        """Whether anything is new or worse."""
        return any(change.alarming for change in self.changes) or any(
            row.worse for row in self.rows
        )

    @property
    def unsettled(self) -> bool:
        """Whether the later trial leaves open what the earlier one could tell."""
        return any(change.kind in LOST and not change.listed for change in self.changes) or any(
            row.lost for row in self.rows
        )

    @property
    def alone(self) -> Mapping[str, tuple[str, ...]]:
        """Nothing: what one trial alone tried is among the legs."""
        return {}

    @property
    def verdict(self) -> str:
        """What it comes to, in a few words."""
        kinds = [change.kind for change in self.changes if not change.listed]
        kinds += [WORSE for row in self.rows if row.worse]
        return verdict(kinds, lost=sum(row.lost for row in self.rows))


def compare_trials(before: Record, after: Record) -> Comparison:
    """Return what differs between two records of trials.

    Raises LookupError, TypeError or AttributeError for a record that lacks something.
    """
    order = list(KINDS)
    changes = sorted(
        _changes(before, after),
        key=lambda change: (order.index(change.kind), change.listed, gravity([change.violated])),
    )
    legs, asked = tuple(_legs(before, after)), tuple(_asked(before, after))
    faults = tuple(_faults(before, after))
    return Comparison(
        names=distinct_names(_name(before), _name(after)),
        message=_message(changes, (*legs, *asked, *faults), after),
        changes=tuple(changes),
        legs=legs,
        asked=asked,
        faults=faults,
        figures=tuple(_figures(before, after)),
    )


def _message(changes: Sequence[Change], rows: Sequence[Row], after: Record) -> str:
    """Say what a comparison comes to."""
    said = f"findings: {counted(change.kind for change in changes)}"
    for count, what in (
        (sum(row.worse for row in rows), "worse"),
        (sum(row.lost for row in rows), "without a verdict in the later run"),
    ):
        if count:
            said += f"; {count} of the trials, properties and fault verdicts {what}"
    return f"{said}; the later run was interrupted" if _cut_short(after) else said


def _cut_short(record: Record) -> bool:
    return bool(record["answer"].get("interrupted"))


def _name(record: Record) -> Name:
    environment = record["environment"]
    return Name(
        commit=environment.get("commit"),
        dirty=environment.get("dirty"),
        device=environment.get("device_name") or "a device that was not recorded",
        subject=record["engine"],
    )


@dataclass(frozen=True)
class Key:
    """What makes two findings the same. A listed one is known of every engine of its kind."""

    runner: str
    preset: str
    violated: str
    listed: bool


Findings = Mapping[Key, Sequence[Record]]


def _changes(before: Record, after: Record) -> Iterator[Change]:
    """Yield every finding of either trial."""
    found = _findings(before), _findings(after)
    for key in {**found[0], **found[1]}:
        old, new = found[0].get(key, []), found[1].get(key, [])
        yield Change(
            kind=_kind(key, (old, new), (before, after)),
            runner=key.runner,
            preset=key.preset,
            violated=key.violated,
            before=_describe(old),
            after=_describe(new),
            listed=key.listed,
        )


def _findings(record: Record) -> Findings:
    """Return the findings of a trial. Several of one key are of several legs."""
    found: dict[Key, list[Record]] = {}
    for one in record["answer"]["findings"]:
        key = Key(one["runner"], one["preset"], one["property"], one["listed"] is not None)
        found.setdefault(key, []).append(one)
    return found


def _kind(
    key: Key, found: tuple[Sequence[Record], Sequence[Record]], records: tuple[Record, Record]
) -> str:
    """Return what became of a finding.

    It is worse where more legs show it; and where fault classes explained it and none does,
    or others do: it is then another fault under the same name.
    """
    old, new = found
    if not old:
        return NEW
    if not new:
        return MENDED if _still_asked(key, *records) else GONE
    classes = [{name for one in some for name in one["faults"]} for some in found]
    unexplained = [any(not one["faults"] for one in some) for some in found]
    another = not unexplained[0] and (unexplained[1] or bool(classes[1] - classes[0]))
    return WORSE if another or len(new) > len(old) else STAYS


def _still_asked(key: Key, before: Record, after: Record) -> bool:
    """Whether the later trial tells of what the earlier one found.

    Every leg of that runner and model that could have found it came to an end again, and nothing
    keeps the property from being asked of it that did not in the earlier trial. A finding does not
    say which of them it is of.
    """
    old, new = _unasked(before, key), _unasked(after, key)
    could = {leg for leg in old if key.violated not in old[leg]}
    return all(
        leg in new and (key.violated not in new[leg] or leg not in could) for leg in could or old
    )


def _unasked(record: Record, key: Key) -> dict[str, Mapping[str, str]]:
    """Return what could not be asked of each leg of a runner and a model that was decided."""
    return {
        leg["leg"]: leg["unasked"]
        for leg in record["answer"]["legs"]
        if (leg["runner"], leg["preset"]) == (key.runner, key.preset) and leg["undecided"] is None
    }


def _describe(findings: Sequence[Record]) -> str | None:
    """Say what is known of findings of one key; None for none."""
    return "; ".join(map(_sentence, findings)) or None


def _sentence(finding: Record) -> str:
    classes = f" ({', '.join(finding['faults'])})" if finding["faults"] else ""
    listed = f"; known difference: {finding['listed']}" if finding["listed"] is not None else ""
    return f"{finding['message']}{classes}{listed}"


def _legs(before: Record, after: Record) -> Iterator[Row]:
    """Yield the legs that ended otherwise.

    Lost are those that are tried no longer, and those that have become undecided.
    """
    runners = {**_runner_of(before), **_runner_of(after)}
    for leg, runner in runners.items():
        old, new = _ending(before, leg, runner), _ending(after, leg, runner)
        if old != new:
            became_open = new.startswith(UNDECIDED) and not old.startswith(UNDECIDED)
            yield Row(leg, old, new, lost=old == TRIED or became_open)


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
            return f"the engine lacks this runner: {entry['reason']}"
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
            cells = [f"not checked: {of[name]}" if name in of else "checked" for of in (old, new)]
            yield Row(f"{name} on {leg}", cells[0], cells[1], lost=name in new)


def _faults(before: Record, after: Record) -> Iterator[Row]:
    """Yield the fault classes and runners of which the verdicts differ."""
    found = [
        {(one["fault"], one["runner"]): one["verdict"] for one in of_faults(record["answer"])}
        for record in (before, after)
    ]
    for key in {**found[0], **found[1]}:
        old, new = (verdicts.get(key, UNTRIED) for verdicts in found)
        if old != new:
            yield Row(
                f"{key[0]} on {key[1]}",
                old,
                new,
                worse=new == "present",
                lost=new in {UNTRIED, UNDECIDED} and old != UNDECIDED,
            )


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
