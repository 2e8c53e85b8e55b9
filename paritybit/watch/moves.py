"""Copies of KV that take time: what they read and fill, from their begin to their end.

A *place* is a slot of a KV group, or a slot of a pool elsewhere that holds KV of the group.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paritybit.watch.facts import FORWARDS, Copy
from paritybit.watch.ledger import SlotCall

READ, WRITTEN, SOURCE, TARGET = "reads", "writes", "copies from", "copies to"
LOOSE, AWAITS = "may reuse", "does not wait for"
"""What is done to a place. With the last two, the engine treats the place as reusable, or the copy
as over."""

FORBIDDEN: Mapping[str, tuple[str, ...]] = {
    READ: ("target",),
    SOURCE: ("target",),
    WRITTEN: ("source", "target"),
    TARGET: ("source", "target"),
    LOOSE: ("source", "target"),
}
"""Of which side of a copy under way a place must not be for each of them."""

MOST_NOTED = 16
"""The most events that are kept of a copy."""


@dataclass
class Moving:
    """A copy under way. `source` and `target` are its places, int64 [n] on the host each."""

    name: str
    copy: Copy
    call: SlotCall
    source: Tensor
    target: Tensor
    noted: list[tuple[str, SlotCall]] = field(default_factory=list)
    """What happened to its places since it began, and at which lines."""

    def pool(self, side: str) -> str:
        """Return the pool of its sources or targets, or "" for the KV group."""
        at = self.copy.source if side == "source" else self.copy.target
        return at.pool

    def places(self, side: str) -> Tensor:
        """Return the places of a side."""
        return self.source if side == "source" else self.target

    def __str__(self) -> str:
        if self.copy.queue == FORWARDS:
            return f"{self.name}, which the device may still run,"
        ends = (self.pool(side) or self.copy.group for side in ("source", "target"))
        of = f" for request {self.copy.request}" if self.copy.request else ""
        return f"copy {self.name} ({' to '.join(ends)}{of})"


class Moves:
    """The copies under way from and to one KV group, in the order in which they began."""

    def __init__(self) -> None:
        self.under_way: dict[str, list[Moving]] = {}
        self.tables: dict[tuple[str, str], Tensor] = {}
        """By pool and side, which places are of a copy under way, bool [places]."""

    def __iter__(self) -> Iterator[Moving]:
        return (one for mine in self.under_way.values() for one in mine)

    def begin(self, moving: Moving) -> None:
        """Add a copy."""
        self.under_way.setdefault(moving.name, []).append(moving)
        self.tables.clear()

    def end(self, name: str) -> list[Moving]:
        """Remove the copies of a name, and return them."""
        self.tables.clear()
        return self.under_way.pop(name, [])

    def clear(self) -> None:
        """Forget all copies."""
        self.under_way.clear()
        self.tables.clear()

    def hits(self, pool: str, places: Tensor, side: str) -> Tensor | None:
        """Return which places, int64 [n], are of a side of a copy under way, or None for none."""
        if not self.under_way:
            return None
        table = self.tables.get((pool, side))
        if table is None:
            mine = [one.places(side) for one in self if one.pool(side) == pool]
            held = torch.cat(mine) if mine else places[:0]
            size = int(held.max()) + 1 if len(held) else 0
            table = torch.zeros(size + 1, dtype=torch.bool)
            table[held] = True
            self.tables[pool, side] = table
        found = table[places.clamp(-1, len(table) - 1)]  # Its last entry is False.
        return found if bool(found.any()) else None

    def of(
        self, act: str, pool: str, places: Tensor, queues: Collection[str] = ()
    ) -> Iterator[tuple[Moving, str, Tensor]]:
        """Yield each copy that forbids an act on some places, with its side, and a mask of them.

        Copies of `queues`, which may also be their own names, are waited for.
        """
        for side in FORBIDDEN[act]:
            if self.hits(pool, places, side) is None:
                continue
            for one in self:
                if one.copy.planned if act != LOOSE else side not in one.copy.kept:
                    continue
                waited = one.copy.queue in queues or one.name in queues
                if one.pool(side) == pool and not waited:
                    mask = torch.isin(places, one.places(side))
                    if bool(mask.any()):
                        yield one, side, mask

    def note(
        self, what: str, pool: str, places: Tensor, call: Callable[[int], SlotCall | None]
    ) -> int:
        """Note what happened to places. `call` returns the call of one by its index.

        Returns the number of places of copies under way.
        """
        hit = torch.zeros_like(places, dtype=torch.bool)
        for side in ("source", "target"):
            if self.hits(pool, places, side) is None:
                continue
            for one in self:
                if one.pool(side) != pool or one.copy.queue == FORWARDS:
                    continue
                mine = torch.isin(places, one.places(side))
                hit |= mine
                at = mine.nonzero().flatten()[:1].tolist()
                known = [call(index) for index in at]
                one.noted += [(what, by) for by in known if by is not None]
                del one.noted[:-MOST_NOTED]
        return int(hit.sum())
