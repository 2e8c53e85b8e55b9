"""Says how a request got a slot that it reads: from a cache, by a restore, or by an allocation."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from paritybit.watch.facts import Forward, Row
from paritybit.watch.ledger import ALLOCATED, Ledger
from paritybit.watch.lines import Lines

MOST = 4096
"""The number of requests that are remembered."""

LATEST = 8
"""The number of forwards whose rows are remembered."""


@dataclass(frozen=True)
class Life:
    """A request since it began, or began again because the engine took its KV away.

    - `since`: its first forward, in which it had `matched` cached positions.
    - `cached`: the number of its cached positions in its last forward.
    """

    since: int
    matched: int
    cached: int


class Origins:
    """The requests of all forwards. Each forward must be checked. `lines` are the engine's."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
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
        return Life(before.since, before.matched, row.cached)

    def earlier(self, forward: Forward, row: Row) -> list[Row]:
        """Return the rows of a request in its last two forwards, the latest first."""
        name = name_of(forward, row)
        return [rows[name] for _, rows in reversed(self.latest) if name in rows][:2]

    def of(
        self, number: int, forward: Forward, row: Row, position: int, slot: int, ledger: Ledger
    ) -> Iterator[str]:
        """Yield how a row got the slot of a position that it reads, as texts."""
        life = self.life(number, name_of(forward, row), row)
        if position < life.matched:
            hit = "" if forward.model else ": a prefix hit"
            yield f"cached before the first forward of the request, which is {life.since}{hit}"
        if (had := self.before(forward, row, position, slot, ledger.group.name)) is not None:
            yield f"position {position} had slot {had[1]} in forward {had[0]}"
        yield from (f"{what} {call}" for what, call in ledger.sources.get(slot, ()))
        given, written = ledger.last_allocation(slot), int(ledger.forward[slot])
        if given is not None and slot not in ledger.sources:
            what, call = given
            yield f"{what} {call}"
            if what == ALLOCATED and 0 < written < call.forward:
                yield "not written since"
        for other, places in forward.having(ledger.group.name, slot):
            if other is not row:
                yield f"request {other.request} has it, too, at position {places[-1]}"
                return

    def before(
        self, forward: Forward, row: Row, position: int, slot: int, group: str
    ) -> tuple[int, int] | None:
        """Return the last forward in which a position of a row had another slot, and that slot.

        Returns None if it had the same slot in the last forward that had the row.
        """
        name = name_of(forward, row)
        last = next(((n, rows[name]) for n, rows in reversed(self.latest) if name in rows), None)
        held = None if last is None else last[1].slots.get(group)
        old = slot if held is None or position >= len(held) else int(held[position])
        return None if last is None or old in (slot, -1) else (last[0], old)


def name_of(forward: Forward, row: Row) -> str:
    """Return the name of a request, which several models and groups may have."""
    return f"{forward.model}{row.request} {','.join(row.slots)}"
