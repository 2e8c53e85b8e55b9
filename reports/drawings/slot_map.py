"""The layout of a sub-pool's slots: a grid of boxes, each with owner and state.

Lengths are in pixels. Boxes with one state are one path, so that a map of many slots stays small.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paritybit.harness.explain.facts import NOBODY, SlotMap, SlotTaken
from paritybit.reports.texts import Fact, words

COLUMNS = 16
CELL = 22
GUTTER = 44
"""The pattern of free boxes has the size of whole boxes, so that they align."""

NONE = "none"


@dataclass(frozen=True)
class Text:
    """A number in a box or to the left of a line of boxes."""

    text: str
    x: int
    y: int


@dataclass(frozen=True)
class MapDrawing:
    """The map of one sub-pool. Lengths are in pixels.

    - `grid`: the outline of all boxes.
    - `paths`: the path of each state, by name.
    - `wrong`, `right`: a cross on the slot used by mistake, and a ring on the right one, or ''.
    - `owners`: the numbers in the boxes, by state.
    """

    name: str
    message: str
    width: int
    height: int
    grid: str
    paths: tuple[Fact, ...]
    wrong: str
    right: str
    owners: Mapping[str, tuple[Text, ...]]
    rows: tuple[Text, ...]


def lay_out(pool: SlotMap, taken: SlotTaken | None = None) -> MapDrawing:
    """Return the map of a sub-pool. `taken` is a slot that was used by mistake, or None."""
    owners = pool.owners
    owned = [slot for slot, owner in enumerate(owners) if owner != NOBODY]
    live = set(pool.live)
    states: Mapping[str, Sequence[int]] = {
        "reserved": range(pool.page_size),
        "live": [slot for slot in owned if owners[slot] in live],
        "parked": [slot for slot in owned if owners[slot] not in live],
        "written": pool.written,
        "differs": pool.differs,
    }
    lines = -(-len(owners) // COLUMNS)
    return MapDrawing(
        name=f"{pool.model}, {pool.kind}",
        message=_describe(pool, len(owned), taken),
        width=GUTTER + COLUMNS * CELL + 2,
        height=lines * CELL + 2,
        grid=_grid(len(owners)),
        paths=tuple(Fact(state, _boxes(slots)) for state, slots in states.items() if slots),
        wrong=_cross(taken.slot) if taken is not None and taken.slot is not None else "",
        right=_ring(taken.right) if taken is not None and taken.right is not None else "",
        owners={
            state: tuple(_number(slot, owners[slot]) for slot in states[state])
            for state in ("live", "parked")
        },
        rows=tuple(
            Text(str(line * COLUMNS), GUTTER - 6, line * CELL + 16) for line in range(lines)
        ),
    )


def _corner(slot: int) -> tuple[int, int]:
    """Return the corner of a slot's box."""
    line, column = divmod(slot, COLUMNS)
    return GUTTER + column * CELL + 1, line * CELL + 1


def _boxes(slots: Iterable[int]) -> str:
    """Return the path around the boxes of these slots."""
    return "".join(f"M{x} {y}h{CELL - 2}v{CELL - 2}h-{CELL - 2}z" for x, y in map(_corner, slots))


def _cross(slot: int) -> str:
    """Return the path of a cross on a slot's box."""
    (x, y), side = _corner(slot), CELL - 2
    return f"M{x} {y}l{side} {side}m0 -{side}l-{side} {side}"


def _ring(slot: int) -> str:
    """Return the path of a ring in a slot's box."""
    (x, y), side = _corner(slot), CELL - 4
    return f"M{x + 1} {y + 1}h{side}v{side}h-{side}z"


def _number(slot: int, owner: int) -> Text:
    x, y = _corner(slot)
    return Text(str(owner), x + CELL // 2 - 1, y + 15)


def _grid(count: int) -> str:
    """Return the path around the first `count` boxes: whole lines and the rest."""
    lines, rest = divmod(count, COLUMNS)
    whole = f"M{GUTTER} 0h{COLUMNS * CELL}v{lines * CELL}h-{COLUMNS * CELL}z"
    return f"{whole}M{GUTTER} {lines * CELL}h{rest * CELL}v{CELL}h-{rest * CELL}z"


def _describe(pool: SlotMap, owned: int, taken: SlotTaken | None) -> str:
    """Describe the map."""
    differs = [_named(slot, pool.owners[slot]) for slot in pool.differs]
    message = f"{owned} of {len(pool.owners)} slots owned"
    message += f"; this step wrote {words(pool.written or [NONE])}"
    return f"{message}; differing: {words(differs or [NONE])}{_swapped(taken)}"


def _swapped(taken: SlotTaken | None) -> str:
    """Describe which slot was used by mistake, and which was right."""
    if taken is None:
        return ""
    wrong = "none" if taken.slot is None else str(taken.slot)
    none = "not known" if taken.key is None else "none"
    right = none if taken.right is None else str(taken.right)
    return f"; used by mistake: {wrong}; expected: {right}"


def _named(slot: int, owner: int) -> str:
    return f"{slot} (nobody’s)" if owner == NOBODY else f"{slot} (request {owner}’s)"
