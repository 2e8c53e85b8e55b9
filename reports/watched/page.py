"""Renders the HTML page of a `paritybit watch` record."""

from collections.abc import Iterator
from dataclasses import dataclass

from paritybit.reports.templating import environment

from paritybit.launch.schema import Finding, Watched
from paritybit.launch.trend import Row, label, rows
from paritybit.launch.words import CauseGroup, by, causes_of, lines_of, plural, source_of

SIGNS = {"finding": ("✗", "bad"), "no finding": ("✓", "good"), "undecided": ("?", "warn")}
"""Sign and tone of a verdict."""

FIGURES = {
    "forwards": "forward passes",
    "replays": "graph replays",
    "padded_replays": "padded replays",
    "reads": "slot reads checked",
    "shared_reads": "reads of a slot that another request wrote",
    "list_entries": "entries of index lists checked",
}
"""The counts at the top of the page."""


@dataclass(frozen=True)
class Step:
    """One step in the picture of a finding: its name and a note."""

    name: str
    note: str


@dataclass(frozen=True)
class Shown:
    """A finding on the page: its lines, and the steps from its cause to the affected request.

    `named` is the number of the line in the engine that the finding names.
    """

    finding: Finding
    lines: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    named: int | None


@dataclass(frozen=True)
class Card:
    """The findings of one cause. `follows` is the cause that it may follow from."""

    group: CauseGroup
    anchor: str
    shown: tuple[Shown, ...]
    follows: str | None

    @property
    def cases(self) -> list[str]:
        """The cases of its findings, one per check."""
        return list(dict.fromkeys(one.case for one in self.group.findings if one.case))

    @property
    def checks(self) -> list[str]:
        """The checks that found it."""
        return sorted({one.check for one in self.group.findings})

    @property
    def legs(self) -> list[str]:
        """The legs in which it was found."""
        return sorted({one.leg for one in self.group.findings})


def render(record: Watched, tree: str = "") -> str:
    """Return the page of a record. Equal records give equal pages.

    `tree` is the path from the folder of the page to the watched source tree, or ''.
    """
    sign, tone = SIGNS[record.verdict]
    cards = [
        Card(group, f"cause-{number}", tuple(map(shown, group.findings)), follows)
        for number, (group, follows) in enumerate(in_order(record), 1)
    ]
    return (
        environment()
        .get_template("watch.html.j2")
        .render(
            record=record,
            tree=tree,
            sign=sign,
            tone=tone,
            headline=headline(record, cards),
            cards=cards,
            filters=filters_of(cards),
            trend=trend_of(record),
            runs=[*map(label, record.trend), "this run"],
            figures={what: record.counts.get(name, 0) for name, what in FIGURES.items()},
            counts={name: n for name, n in record.counts.items() if name not in FIGURES},
            stand_ins={what: why for leg in record.legs for what, why in leg.stand_ins.items()},
            processes=[(leg.name, process) for leg in record.legs for process in leg.processes],
            settings=settings_of(record),
        )
    )


def in_order(record: Watched) -> Iterator[tuple[CauseGroup, str | None]]:
    """Yield each cause, then those that may follow from it with its name."""
    for root in causes_of(record.findings):
        yield root, None
        for cause in root.consequences:
            yield cause, root.name


def headline(record: Watched, cards: list[Card]) -> str:
    """Return the verdict in one line."""
    if record.verdict != "finding":
        return record.verdict
    failing = [card for card in cards if card.group.known is None]
    number = sum(one.number for card in failing for one in card.group.findings if one.known is None)
    roots = sum(card.follows is None for card in failing)
    return f"{plural(number, 'finding')} with {plural(roots, 'cause')}"


def filters_of(cards: list[Card]) -> dict[str, list[str]]:
    """Return the filters for findings, with the values that occur."""
    known = {"yes" if card.group.known else "no" for card in cards}
    found = {
        "check": sorted({check for card in cards for check in card.checks}),
        "leg": sorted({leg for card in cards for leg in card.legs}),
        "known": sorted(known),
    }
    return {name: values for name, values in found.items() if len(values) > 1}


def trend_of(record: Watched) -> list[Row]:
    """Return the trend of each cause, or one row "no findings"."""
    none = Row("no findings", tuple("–" for _ in (*record.trend, record)), "")
    return (list(rows(record)) or [none]) if record.trend else []


def shown(finding: Finding) -> Shown:
    """Return a finding as the page shows it."""
    source = source_of(finding)
    named = None if source is None else source[1]
    return Shown(finding, tuple(lines_of(finding)), tuple(steps_of(finding)), named)


def steps_of(finding: Finding) -> Iterator[Step]:
    """Yield the steps from the cause of a finding over its slot to the affected requests."""
    if finding.cause is not None:
        name = finding.cause.input or "cause"
        note = finding.cause.source or ("" if finding.cause.input else finding.cause.what)
        yield Step(name, note or "static input")
    what = (
        f"replay of {finding.replay}"
        if finding.replay
        else f"{finding.forward_kind or 'a'} forward"
    )
    if finding.forward is not None:
        yield Step(what, f"forward {finding.forward}")
    if finding.slots:
        more = f" and {finding.count - 1} more" if finding.count > 1 else ""
        layer = f", {finding.layer}" if finding.layer else ""
        yield Step(f"slot {finding.slots[0]}{more}", f"group {finding.group}{layer}")
    if finding.writer is not None:
        yield Step("written for", by(finding.writer))
    if finding.reader is not None:
        yield Step("read by", by(finding.reader))


def settings_of(record: Watched) -> dict[str, str]:
    """Return the values of each setting over all legs."""
    found: dict[str, dict[str, None]] = {}
    for leg in record.legs:
        for name, values in leg.settings.items():
            found.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: ", ".join(values) for name, values in found.items()}
