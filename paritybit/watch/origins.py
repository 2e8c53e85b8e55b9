"""Says how a request got a slot that it reads: from a cache, by a restore, or by an allocation."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from paritybit.watch.facts import Forward, Row
from paritybit.watch.ledger import ALLOCATED, Ledger
from paritybit.watch.lines import Lines

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
        return replace(before, cached=row.cached)

    def earlier(self, forward: Forward, row: Row) -> list[Row]:
        """Return the rows of a request in its last two forwards, the latest first."""
        name = name_of(forward, row)
        return [rows[name] for _, rows in reversed(self.latest) if name in rows][:2]

    def of(
        self, number: int, forward: Forward, row: Row, position: int, slot: int, ledger: Ledger
    ) -> str:
        """Return how a row got the slot of a position that it reads, as text, or ''."""
        name, group = name_of(forward, row), ledger.group.name
        life, found = self.life(number, name, row), list[str]()
        if position < life.matched:
            hit = "" if forward.model else ": a prefix hit"
            found.append(
                f"cached before the first forward of the request, which is {life.since}{hit}"
            )
        if (before := self.before(forward, row, position, slot, group)) is not None:
            found.append(f"position {position} had slot {before[1]} in forward {before[0]}")
        found += [f"{what} {call}" for what, call in ledger.sources.get(slot, ())]
        given, written = ledger.last_allocation(slot), int(ledger.forward[slot])
        if given is not None and slot not in ledger.sources:
            what, call = given
            found.append(f"{what} {call}")
            if what == ALLOCATED and 0 < written < call.forward:
                found.append("not written since")
        found += next(sharing(forward, row, slot, group), [])
        return "; ".join(found)

    def lost(
        self, forward: Forward, row: Row, position: int, slot: int, ledger: Ledger
    ) -> tuple[dict[str, Any] | None, str | None]:
        """Return the call that freed the slot of a position that has none now, and where it was."""
        had = self.before(forward, row, position, slot, ledger.group.name)
        if had is None:
            return None, None
        call = ledger.calls.get(abs(int(ledger.freed[had[1]])))
        since = call is not None and call.forward > had[0]
        return (
            call.who if call and since else None,
            f"position {position} had slot {had[1]} in forward {had[0]}",
        )

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


def sharing(forward: Forward, row: Row, slot: int, group: str) -> Iterator[list[str]]:
    """Yield, for each other row that has a slot of a row, a text that says so."""
    for other in forward.rows:
        held = None if other is row else other.slots.get(group)
        places = [] if held is None else (held == slot).nonzero().flatten().tolist()
        if places:
            yield [f"request {other.request} has it, too, at position {places[-1]}"]


def name_of(forward: Forward, row: Row) -> str:
    """Return the name of a request, which several models and groups may have."""
    return f"{forward.model}{row.request} {','.join(row.slots)}"
