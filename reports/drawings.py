"""Drawings of a violation in the laboratory: bit patterns, steps and slots."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from paritybit.harness.explain.facts import (
    NOBODY,
    Explanation,
    SlotMap,
    SlotTaken,
    TimelineEntry,
)
from paritybit.reports.model import Bits, Cell, Cells, Fact, comma_separated

SIDES: Mapping[str, tuple[str, str]] = {
    "hermetic_replay": ("freshly captured", "after earlier replays"),
    "padding_noninterference": ("undisturbed", "with noise"),
    "batch_invariance": ("own batch", "other batch"),
    "determinism": ("first run", "second run"),
    "dense_agreement": ("float64 oracle", "eager"),
}
"""The names of the two sides, if they are not the eager and the graph run."""

MOST_STEPS, MOST_ROWS, MOST_SLOTS = 40, 64, 1024
"""The last steps, the batch rows and the slots that are drawn."""

COLUMNS = 32


def bits(property_name: str, where: Mapping[str, Any]) -> Bits | None:
    """Return both bit patterns of a violation, or None if it has none."""
    if "eager_bits" not in where or "graph_bits" not in where:
        return None
    left, right = str(where["eager_bits"]), str(where["graph_bits"])
    names = SIDES.get(property_name, ("eager", "graph"))
    message = ""
    if (width := width_of(left)) and width == width_of(right):
        message = f"{(int(left, 16) ^ int(right, 16)).bit_count()} of {width} bits differ"
    patterns = (runs(left, right), runs(right, left))
    values = (float_of(left), float_of(right))
    return Bits(tuple(zip(names, patterns, values, strict=True)), message)


def runs(text: str, other: str) -> tuple[tuple[str, bool], ...]:
    """Split a text into parts that differ from another one, and parts that agree with it."""
    pairs = zip(text, other.ljust(len(text)), strict=False)
    groups = groupby(pairs, key=lambda pair: pair[0] != pair[1])
    return tuple(("".join(own for own, _ in group), differs) for differs, group in groups)


def width_of(text: str) -> int:
    """Return the number of bits of a text such as 0x3f800000, or 0 for other texts."""
    digits = text.removeprefix("0x")
    spelled = digits != text and digits and set(digits) <= set("0123456789abcdef")
    return 4 * len(digits) if spelled else 0


def float_of(text: str) -> str:
    """Return the float for 0x and 8 digits (float32) or 4 digits (bfloat16), or ''."""
    width = width_of(text)
    if width not in (16, 32):
        return ""
    number = int(text, 16) << (32 - width)
    (value,) = struct.unpack(">f", number.to_bytes(4, "big"))
    return f"{value:.9g}" if width == 32 else f"{value:.4g}"


def steps(entries: Sequence[TimelineEntry]) -> Cells | None:
    """Return the last steps of a schedule, one per row, or None without steps."""
    drawn = entries[-MOST_STEPS:]
    return Cells(tuple(map(step, drawn))) if drawn else None


def step(entry: TimelineEntry) -> tuple[Fact, tuple[Cell, ...]]:
    """Return one step: its live requests, its padding, and the parked requests."""
    live = "eager" if entry.bucket is None else "live"
    boxes = [Cell(str(request), live) for request in entry.live]
    boxes += [Cell("", "padded")] * max(0, min(entry.padded, MOST_ROWS))
    boxes += [Cell(str(request), "parked") for request in entry.parked]
    path = "no forward" if entry.mode is None else "eager"
    if entry.bucket is not None:
        path = f"bucket {entry.bucket} of {entry.runner}"
    violated = f"; violates {comma_separated(entry.violated)}" if entry.violated else ""
    name = f"{entry.index} {entry.step}"
    return Fact.of(name, f"{path}{violated}"), tuple(boxes[: 2 * MOST_ROWS])


def slots(found: Explanation) -> Iterator[Cells]:
    """Yield the sub-pool with the slot used by mistake, or else those that differ."""
    wanted = [
        (one.model, one.kind)
        for one in (found.taken, found.slot, found.difference)
        if one is not None
    ]
    pools = [pool for pool in found.slots if (pool.model, pool.kind) in wanted[:1]]
    for pool in pools or [pool for pool in found.slots if pool.differs]:
        taken = found.taken
        mine = taken is not None and (taken.model, taken.kind) == (pool.model, pool.kind)
        yield slot_map(pool, taken if mine else None, right_of(found))


def right_of(found: Explanation) -> int | None:
    """Return the slot that should have been used, or None."""
    if found.taken is not None and found.taken.right is not None:
        return found.taken.right
    # A padded row has no other run to tell what is right: the element that led there does.
    elements = found.cause.elements if found.cause is not None else ()
    if found.taken is not None and elements and elements[0].value == str(found.taken.slot):
        return int(elements[0].right) if elements[0].right.isdecimal() else None
    return None


def slot_map(pool: SlotMap, taken: SlotTaken | None, right: int | None) -> Cells:
    """Return the slots of a sub-pool, each with its owner and state."""
    boxes = [
        Cell("" if owner == NOBODY else str(owner), " ".join(states(pool, slot, taken, right)))
        for slot, owner in enumerate(pool.owners[:MOST_SLOTS])
    ]
    about = f"{pool.model}, {pool.kind}: this step wrote {comma_separated(pool.written)}"
    about += f"; differing: {comma_separated(pool.differs)}"
    if taken is not None:
        about += f"; used by mistake: {taken.slot}; expected: {'–' if right is None else right}"
    lines = [tuple(boxes[at : at + COLUMNS]) for at in range(0, len(boxes), COLUMNS)]
    heads = [Fact.of(str(COLUMNS * n), "" if n else about) for n in range(len(lines))]
    return Cells(tuple(zip(heads, lines, strict=True)), grid=True)


def states(pool: SlotMap, slot: int, taken: SlotTaken | None, right: int | None) -> Iterator[str]:
    """Yield the states of a slot."""
    owner = pool.owners[slot]
    if slot < pool.page_size:
        yield "reserved"
    elif owner != NOBODY:
        yield "live" if owner in pool.live else "parked"
    yield from ["written"] * (slot in pool.written)
    yield from ["differs"] * (slot in pool.differs)
    if taken is not None:
        yield from ["wrong"] * (slot == taken.slot)
        yield from ["right"] * (slot == right)
