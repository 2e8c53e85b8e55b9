"""From red to root cause: what the record tells of why the two worlds differ, in order.

Knows the record's JSON of an explanation and the words for it. Does not know markup, and
explains nothing itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports import slot_map, static_inputs
from reports.bit_patterns import Comparison, compare
from reports.slot_map import SlotMap
from reports.static_inputs import Table, source_text
from reports.texts import Fact

THIRD_ARM: Mapping[str | None, str] = {
    None: "",
    "as the graph": "Run eagerly through the same static buffers, the captured function gives the"
    " graph’s bits: what it reads is wrong, not how it runs.",
    "as the eager world": "Run eagerly through the same static buffers, the captured function"
    " gives the eager bits: what it reads is right, what was captured is not.",
    "as neither": "Run eagerly through the same static buffers, the captured function gives the"
    " bits of neither world.",
}
"""What a third arm, the captured function run eagerly, says of the blame."""


HOW: Mapping[str, str] = {
    "copied": "copied from its batch",
    "reset": "reset as padding",
    "levelled": "made equal for all padded rows",
    "capture": "left so since",
}
"""How a static element came to hold what it holds."""


@dataclass(frozen=True)
class Explanation:
    """Why the worlds differ. `chain` leads from what went wrong to the first differing bits."""

    blame: str
    third_arm: str
    proof: tuple[Fact, ...]
    chain: tuple[Fact, ...]
    comparison: Comparison | None
    timeline_entry: str
    table: Table | None
    slots: tuple[SlotMap, ...]


def explain(
    explanation: Mapping[str, Any] | None, steps: Sequence[Mapping[str, Any]]
) -> Explanation | None:
    """Return what a finding's explanation tells, None where there is none."""
    if explanation is None:
        return None
    return Explanation(
        blame=explanation["blame"],
        third_arm=THIRD_ARM[explanation["third_arm"]],
        proof=tuple(_sentence(each) for each in explanation["proof"]),
        chain=tuple(_chain(explanation)),
        comparison=compare(explanation["property"], explanation["difference"] or {}),
        timeline_entry=_moment(explanation),
        table=static_inputs.tabulate(explanation, steps),
        slots=tuple(slot_map.lay_out(each) for each in explanation["slots"]),
    )


def _sentence(text: str) -> Fact:
    """Return a sentence of the proof with its first word apart: let, then, but, so."""
    first, _, rest = text.partition(" ")
    return Fact(first, rest)


def _moment(explanation: Mapping[str, Any]) -> str:
    if explanation["bucket"] is None:
        return f"step {explanation['step']}"
    return (
        f"step {explanation['step']}: {explanation['runner']},"
        f" {explanation['live_size']} live of bucket {explanation['bucket']}"
    )


def _chain(explanation: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the links that are known: who left what where, whose slot it is, what differs."""
    index, slot = explanation["index"], explanation["slot"]
    site, difference = explanation["site"], explanation["difference"]
    if index is not None:
        yield Fact(_who(index["left_by"]), HOW[index["left_by"]["how"]])
        yield Fact(_element(index), _right(index))
    if slot is not None:
        written = slot["written_by"]
        by = "never written" if written is None else f"written by {_who(written)}"
        name = f"{slot['model']}, {slot['kind']} slot {slot['slot']}"
        yield Fact(name, f"{slot['owner']}’s; {by}")
    if site is not None:
        yield Fact(f"{site['function']} in {site['file']}", site["message"])
    if difference is not None:
        yield Fact(_what(difference), _where(difference))


def _who(writer: Mapping[str, Any]) -> str:
    """Name a step, its runner and its row."""
    if writer["step"] == static_inputs.CAPTURE:
        return source_text(writer["step"])
    by = writer["runner"] or "eager forward"
    request = "padding" if writer["request"] is None else f"request {writer['request']}"
    return f"{source_text(writer['step'])}, {by}, row {writer['row']} ({request})"


def _element(index: Mapping[str, Any]) -> str:
    """Name the static element that led to an index, or the slot that the graph itself holds."""
    if index["buffer"] is None:
        return f"slot {index['value']}, in no static input"
    return f"{index['buffer']}[{index['element']}] = {index['value']}"


def _right(index: Mapping[str, Any]) -> str:
    message = ["stale" if index["stale"] else "written by this step"]
    message += (
        [] if index["right"] in (None, index["value"]) else [f"{index['right']} would be right"]
    )
    message += [] if index["read"] == index["value"] else [f"leads to slot {index['read']}"]
    return ", ".join(message)


def _what(difference: Mapping[str, Any]) -> str:
    """Name the op, and of what it works on all that is known."""
    layer = None if difference["layer"] is None else f"layer {difference['layer']}"
    parts = (difference["model"], layer, difference["kind"], difference["tensor"])
    return ", ".join([difference["op"], *(part for part in parts if part is not None)])


def _where(difference: Mapping[str, Any]) -> str:
    """Say where within a tensor the first difference is."""
    liveness = "live" if difference["live"] else "padded"
    row = [] if difference["row"] is None else [f"{liveness} row {difference['row']}"]
    names = ("slot", "head", "element")
    parts = [f"{name} {difference[name]}" for name in names if difference[name] is not None]
    return ", ".join(["the first difference", *row, *parts])
