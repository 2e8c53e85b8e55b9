"""A graph's static inputs before a replay: the value of each element, and the step that wrote it.

Whether an element is stale or the cause of an error comes from the record.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paritybit.harness.explain.facts import (
    CAPTURE,
    Explanation,
    StaticInputRow,
    Suspect,
    TimelineEntry,
)
from paritybit.reports.texts import Fact, value_text, words

FILL_ONCE = "fill once"
"""The name of the padding that is only filled at allocation."""

MOST_NAMED = 8
"""The number of elements listed in a fault."""

MOST_ELEMENTS = 48
"""The number of elements shown per static input."""

SECTIONS: Mapping[str, int] = {"3 x token": 3}
"""The number of sections per axis. Each section has a live part. The default is 1."""

PER: Mapping[str, str] = {"scalar": "one in all", "3 x token": "three per token"}
"""The number of elements per axis as text, if it is not one for each."""


@dataclass(frozen=True)
class Element:
    """One element. `kinds` has live, padded, stale, culprit. `source` is '' for this step."""

    value: str
    kinds: str
    source: str


FILL = "fill "
"""The beginning of the text for padding that is filled at each padded replay."""


@dataclass(frozen=True)
class StaticInput:
    """One static input: a description, its elements, and the omitted elements as text.

    `fault` describes how its tail breaks the contract, or is ''.
    """

    name: str
    message: str
    fault: str
    elements: tuple[Element, ...]
    omitted: str

    @property
    def guilty(self) -> bool:
        """Whether it is the cause or breaks its contract."""
        return bool(self.fault) or any("culprit" in element.kinds for element in self.elements)

    @property
    def stale(self) -> bool:
        """Whether any element is stale."""
        return any("stale" in element.kinds for element in self.elements)


@dataclass(frozen=True)
class Table:
    """All static inputs of a replay, and the steps that wrote their elements as text."""

    inputs: tuple[StaticInput, ...]
    stale: int
    sources: tuple[Fact, ...]

    @property
    def first(self) -> tuple[StaticInput, ...]:
        """The inputs that are a cause or break their contract, or else the stale ones."""
        guilty = tuple(row for row in self.inputs if row.guilty)
        return guilty or tuple(row for row in self.inputs if row.stale)

    @property
    def others(self) -> tuple[StaticInput, ...]:
        """The other inputs."""
        return tuple(row for row in self.inputs if row not in self.first)


def tabulate(
    explanation: Explanation,
    timeline: Sequence[TimelineEntry],
    paddings: Mapping[str, str],
) -> Table | None:
    """Return the static inputs of an explanation, or None without a replay.

    `timeline` is that of the finding. `paddings` are those of the right contract, as far as known.
    """
    inputs = explanation.static_inputs
    if not inputs:
        return None
    now = explanation.at.step
    return Table(
        inputs=tuple(
            _input(row, now, _culprits(row, explanation.cause), paddings) for row in inputs
        ),
        stale=sum(len(row.stale) for row in inputs),
        sources=tuple(_sources(inputs, now, timeline)),
    )


def source_text(step: int) -> str:
    """Name the step, or the capture."""
    return "capture" if step == CAPTURE else f"step {step}"


def _culprits(row: StaticInputRow, cause: Suspect | None) -> frozenset[int]:
    """Return the elements of a static input that are the cause."""
    elements = () if cause is None else cause.elements
    return frozenset(one.place[0] for one in elements if one.holder == row.name)


def _input(
    row: StaticInputRow, now: int, culprits: Collection[int], paddings: Mapping[str, str]
) -> StaticInput:
    elements = tuple(
        Element(
            value=value_text(value),
            kinds=_kinds(row, place, culprits),
            source="" if left_by == now else source_text(left_by),
        )
        for place, (value, left_by) in enumerate(zip(row.values, row.left_by, strict=True))
    )
    return StaticInput(
        name=row.name,
        message=f"{row.dtype}, {_per(row.axis)}, {row.padding}",
        fault=_fault(row, now, paddings.get(row.name, row.padding)),
        elements=elements[:MOST_ELEMENTS],
        omitted=_omitted(len(elements), row.stale),
    )


def _fault(row: StaticInputRow, now: int, padding: str) -> str:
    """Describe how a tail breaks the correct padding, or return ''."""
    tail = [place for place in range(len(row.values)) if "padded" in _kinds(row, place, ())]
    left = [place for place in tail if row.left_by[place] != now]
    if not padding.startswith(FILL) or padding == FILL_ONCE or not left:
        return ""
    value, which = padding.removeprefix(FILL), _places(left)
    says = f"its contract fills padding with {value} at every padded replay"
    return f"{says}, but {which} {'was' if len(left) == 1 else 'were'} not refilled"


def _places(places: Sequence[int]) -> str:
    """Name the first elements."""
    if len(places) == 1:
        return f"element {places[0]}"
    more = f" and {len(places) - MOST_NAMED} more" if len(places) > MOST_NAMED else ""
    return f"elements {words(places[:MOST_NAMED])}{more}"


def _per(axis: str) -> str:
    return PER.get(axis, f"one per {axis}")


def _kinds(row: StaticInputRow, place: int, culprits: Collection[int]) -> str:
    section = max(1, len(row.values) // SECTIONS.get(row.axis, 1))
    kinds = ["live" if place % section < row.live else "padded"]
    kinds += ["stale"] if place in row.stale else []
    kinds += ["culprit"] if place in culprits else []
    return " ".join(kinds)


def _omitted(count: int, stale: Sequence[int]) -> str:
    """Describe how many elements are not shown, or return ''."""
    if count <= MOST_ELEMENTS:
        return ""
    hidden = sum(place >= MOST_ELEMENTS for place in stale)
    return f"and {count - MOST_ELEMENTS} more, {hidden} of them stale"


def _sources(
    inputs: Sequence[StaticInputRow], now: int, timeline: Sequence[TimelineEntry]
) -> Iterator[Fact]:
    """Yield a description of each earlier step that wrote an element."""
    messages = {entry.place: f"{entry.step} of requests {words(entry.live)}" for entry in timeline}
    messages[CAPTURE] = "never written since"
    for step in sorted({step for row in inputs for step in row.left_by} - {now}):
        yield Fact(source_text(step), messages.get(step, "not drawn"))
