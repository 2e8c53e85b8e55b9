"""Layout of a sub-pool's slots: a grid of boxes, each with its owner and its state.

Knows the record's JSON of a sub-pool, and pixels. Does not know markup or colours. Boxes
of one state are one path, so that a map of a hundred slots stays small.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from reports.texts import Fact, words

COLUMNS = 16
CELL = 20
GUTTER = 30
NOBODY = -1


@dataclass(frozen=True)
class Text:
    """A number in a box, or left of a line of boxes. `kind` says whose box it is."""

    kind: str
    text: str
    x: int
    y: int


@dataclass(frozen=True)
class SlotMap:
    """One sub-pool; lengths are in pixels. `paths` are of one state each: its name, its path."""

    name: str
    told: str
    width: int
    height: int
    paths: tuple[Fact, ...]
    owners: tuple[Text, ...]
    rows: tuple[Text, ...]


def lay_out(pool: Mapping[str, Any]) -> SlotMap:
    """Return the map of a sub-pool."""
    owners: Sequence[int] = pool["owners"]
    owned = [slot for slot, owner in enumerate(owners) if owner != NOBODY]
    live = set(pool["live"])
    reserved = range(pool["page_size"])
    states: Mapping[str, Iterable[int]] = {
        "free": range(len(owners)),
        "reserved": reserved,
        "live": [slot for slot in owned if owners[slot] in live],
        "parked": [slot for slot in owned if owners[slot] not in live],
        "written": pool["written"],
        "differs": pool["differs"],
    }
    lines = -(-len(owners) // COLUMNS)
    return SlotMap(
        name=f"{pool['model']}, {pool['kind']}",
        told=_tell(pool, len(owned)),
        width=GUTTER + COLUMNS * CELL + 2,
        height=lines * CELL + 2,
        paths=tuple(Fact(state, _boxes(slots)) for state, slots in states.items() if slots),
        owners=tuple(_owners(owners, live)),
        rows=tuple(
            Text("row", str(line * COLUMNS), GUTTER - 6, line * CELL + 14) for line in range(lines)
        ),
    )


def _corner(slot: int) -> tuple[int, int]:
    """Return where the box of a slot begins."""
    line, column = divmod(slot, COLUMNS)
    return GUTTER + column * CELL + 1, line * CELL + 1


def _boxes(slots: Iterable[int]) -> str:
    """Return the path around the boxes of these slots."""
    return "".join(f"M{x} {y}h{CELL - 2}v{CELL - 2}h-{CELL - 2}z" for x, y in map(_corner, slots))


def _owners(owners: Sequence[int], live: Set[int]) -> Iterator[Text]:
    for slot, owner in enumerate(owners):
        if owner != NOBODY:
            x, y = _corner(slot)
            kind = "of-live" if owner in live else "of-parked"
            yield Text(kind, str(owner), x + CELL // 2 - 1, y + 13)


def _tell(pool: Mapping[str, Any], owned: int) -> str:
    """Say in words what the map shows."""
    differs = [_named(slot, pool["owners"][slot]) for slot in pool["differs"]]
    return (
        f"{owned} of {len(pool['owners'])} slots owned;"
        f" this step wrote {words(pool['written'])}; differing: {words(differs)}"
    )


def _named(slot: int, owner: int) -> str:
    return f"{slot} (nobody’s)" if owner == NOBODY else f"{slot} (request {owner}’s)"
