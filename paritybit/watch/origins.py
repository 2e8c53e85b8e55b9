"""Says how a request got a slot that it reads: from a cache, by a restore, or by an allocation."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paritybit.watch.facts import Forward, Row
from paritybit.watch.ledger import Ledger

MOST = 4096
"""The number of requests that are remembered."""

LATEST = 8
"""The number of forwards whose rows are remembered."""


@dataclass(frozen=True)
class Life:
    """A request since it began, or since the engine took its KV away and it began again.

    - `since`: its first forward, in which it had `matched` cached positions.
    - `cached`: the number of its cached positions in its last forward.
    """

    since: int
    matched: int
    cached: int


class Origins:
    """The requests of all forwards. Each forward must be checked."""

    def __init__(self) -> None:
        self.lives: OrderedDict[str, Life] = OrderedDict()
        self.latest: deque[tuple[int, dict[str, Row]]] = deque(maxlen=LATEST)

    def note(self, number: int, forward: Forward) -> None:
        """Note the rows of a forward that begins. Call it after its reads were judged."""
        rows = {name_of(forward, row): row for row in forward.rows}
        for name, row in rows.items():
            self.lives[name] = self.life(number, name, row)
            self.lives.move_to_end(name)
        self.latest.append((number, rows))
        while len(self.lives) > MOST:
            self.lives.popitem(last=False)

    def life(self, number: int, name: str, row: Row) -> Life:
        """Return the life of a request in a forward."""
        before = self.lives.get(name)
        if before is None or row.cached < before.cached:
            return Life(number, row.cached, row.cached)
        return replace(before, cached=row.cached)

    def of(
        self, number: int, forward: Forward, row: Row, position: int, slot: int, ledger: Ledger
    ) -> str:
        """Return how a row got the slot of a position that it reads, as text, or ''."""
        return "; ".join(self.parts(number, forward, row, position, slot, ledger))

    def parts(
        self, number: int, forward: Forward, row: Row, position: int, slot: int, ledger: Ledger
    ) -> Iterator[str]:
        """Yield what is known about how a row got a slot."""
        name, group = name_of(forward, row), ledger.group.name
        life = self.life(number, name, row)
        if position < life.matched:
            hit = "" if forward.model else ": a prefix hit"
            yield f"cached before the first forward of the request, which is {life.since}{hit}"
        last = next(((n, rows[name]) for n, rows in reversed(self.latest) if name in rows), None)
        held = None if last is None else last[1].slots.get(group)
        old = slot if held is None or position >= len(held) else int(held[position])
        if last is not None and old not in (slot, -1):
            yield f"position {position} had slot {old} in forward {last[0]}"
        if (came := ledger.came.get(slot)) is not None:
            yield came
        taken, written = int(ledger.taken[slot]), int(ledger.forward[slot])
        if taken:
            since = "; not written since" if 0 < written < taken else ""
            yield f"allocated before forward {taken}{since}"
        for other in forward.rows:
            if other is row or group not in other.slots:
                continue
            places = (other.slots[group] == slot).nonzero().flatten()
            if len(places):
                yield f"request {other.request} has it, too, at position {int(places[-1])}"
                return


def name_of(forward: Forward, row: Row) -> str:
    """Return the name of a request, which several models and groups may have."""
    return f"{forward.model}{row.request} {','.join(row.slots)}"
