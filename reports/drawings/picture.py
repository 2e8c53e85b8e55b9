"""The layout of the picture of a stale index: rows of a replay, their buffer, and their slots.

Lengths are in pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paritybit.harness.explain.facts import (
    CAPTURE,
    NOBODY,
    Explanation,
    SlotMap,
    StaticInputRow,
    WrongElement,
)
from paritybit.reports.drawings.static_inputs import source_text

LEFT, WIDTH = 190, 870
"""The left edge of the boxes, and the width of the picture."""

ROW_WIDTH, ROW_TOP = 150, 84
COLUMNS, CELL, POOL_TOP = 25, 26, 278


@dataclass(frozen=True)
class Box:
    """A box with a text. `kind` is live, wrong, padded, free or reserved."""

    x: int
    y: int
    width: int
    text: str
    kind: str
    note: str = ""


@dataclass(frozen=True)
class Arrow:
    """An arrow from an element of the buffer to the slot of its row. `kind` is wrong or live."""

    path: str
    kind: str


@dataclass(frozen=True)
class Picture:
    """A picture. Lengths are in pixels. `rows` are above the elements that they read."""

    width: int
    height: int
    title: str
    step: str
    buffer: str
    pool: str
    rows: tuple[Box, ...]
    elements: tuple[Box, ...]
    slots: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    bits: str
    remedy: str


def lay_out(explanation: Explanation) -> Picture:
    """Return the picture of a row that writes to the slot of a stale element.

    Raises ValueError for an explanation with another cause.
    """
    cause, slot, bits = explanation.cause, explanation.slot, explanation.difference
    element = next(iter(() if cause is None else cause.elements), None)
    if element is None or element.left_by is None or slot is None or bits is None:
        raise ValueError("no static input leads this row to a slot")
    held = next(row for row in explanation.static_inputs if row.name == element.holder)
    pool = next(
        pool for pool in explanation.slots if (pool.model, pool.kind) == (slot.model, slot.kind)
    )
    slots = tuple(_slots(pool, slot.slot))
    at = explanation.at
    return Picture(
        width=WIDTH,
        height=slots[-1].y + CELL + 86,
        title=f"A padded row of a CUDA-graph replay overwrites the KV of {slot.owner}",
        step=(
            f"step {at.step}: {at.runner}, {at.live_size} live rows in a graph captured "
            f"for {at.bucket}"
        ),
        buffer=held.name,
        pool=f"{pool.kind.upper()} pool",
        rows=tuple(_rows(held, bits.row, pool)),
        elements=tuple(_elements(held, element, at.step)),
        slots=slots,
        arrows=tuple(_arrows(held, element, slots)),
        bits=(
            f"slot {slot.slot} of {slot.owner}, layer {bits.layer}, {bits.tensor}, element"
            f" {bits.element}: eager {bits.eager_bits}, graph {bits.graph_bits}"
        ),
        remedy=(
            f"{source_text(element.left_by.step)} left {element.name} = {element.value}. With "
            f"{element.right}, as just after the capture, the row does not touch slot "
            f"{slot.slot}."
        ),
    )


def _place(element: int) -> int:
    return LEFT + element * (ROW_WIDTH + 10)


def _rows(held: StaticInputRow, wrong: int | None, pool: SlotMap) -> Sequence[Box]:
    """Return the rows of the batch with their owners."""
    return [
        Box(
            x=_place(row),
            y=ROW_TOP,
            width=ROW_WIDTH,
            text=f"row {row}: " + (f"request {pool.live[row]}" if row < held.live else "padding"),
            kind="wrong" if row == wrong else "live" if row < held.live else "padded",
        )
        for row in range(len(held.values))
    ]


def _elements(held: StaticInputRow, wrong: WrongElement, now: int) -> Sequence[Box]:
    """Return the elements of the buffer, each with the step that wrote it."""
    return [
        Box(
            x=_place(place),
            y=ROW_TOP + 60,
            width=ROW_WIDTH,
            text=str(value),
            kind="wrong" if place == wrong.place[0] else "live" if place < held.live else "padded",
            note=_since(left_by, now),
        )
        for place, (value, left_by) in enumerate(zip(held.values, held.left_by, strict=True))
    ]


def _slots(pool: SlotMap, wrong: int) -> Sequence[Box]:
    """Return the slots of a sub-pool with their owners."""
    boxes = []
    for slot, owner in enumerate(pool.owners):
        line, column = divmod(slot, COLUMNS)
        kind = "free" if owner == NOBODY else "live"
        kind = "reserved" if slot < pool.page_size else "wrong" if slot == wrong else kind
        text = "" if owner == NOBODY else str(owner)
        boxes.append(Box(LEFT + column * CELL, POOL_TOP + line * CELL, CELL, text, kind))
    return boxes


def _arrows(held: StaticInputRow, wrong: WrongElement, slots: Sequence[Box]) -> Sequence[Arrow]:
    """Return an arrow from each live element, and from the wrong one, to its slot."""
    found = []
    for place in sorted({*range(held.live), wrong.place[0]}):
        target = slots[held.values[place]]
        x, y = _place(place) + ROW_WIDTH // 2, ROW_TOP + 112
        end_x, end_y = target.x + CELL // 2, target.y
        kind = "wrong" if place == wrong.place[0] else "live"
        bend = (y + end_y) // 2
        found.append(Arrow(f"M{x} {y}C{x} {bend} {end_x} {bend} {end_x} {end_y}", kind))
    return found


def _since(left_by: int, now: int) -> str:
    """Describe which step wrote an element."""
    if left_by == CAPTURE:
        return "as captured"
    return f"written by step {left_by}" if left_by == now else f"left by step {left_by}"
