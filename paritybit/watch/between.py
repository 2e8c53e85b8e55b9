"""What an engine reports between forwards: allocations, copies, tokens that became known.

Each change of slots is noted by a copy of its slot numbers alone, which does not wait for a GPU.
`settle` then brings the ledgers up to date with all changes, in their order.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paritybit.watch.boundary import LONGEST, Boundary, guarded
from paritybit.watch.chains import Chains
from paritybit.watch.facts import Forward, Group, Row, StaticInput
from paritybit.watch.journal import Journal
from paritybit.watch.ledger import Ledger, Names
from paritybit.watch.observations import Cached, EngineError, Freeing, Idle, IdleRows
from paritybit.watch.settings import Settings

MOST_WAITING = 4096
"""Requests whose ids are kept until their tokens are known."""


FREED, ALLOCATED, FILLED = "freed", "allocated", "filled"

MOST_NOTED = 4096
"""Changes that are kept before the ledger is brought up to date."""


@dataclass(frozen=True)
class Change:
    """What happened to so many slots, [size], by which call if they were freed.

    Pages are freed and allocated whole, and named by their first slots; other slots are ignored.
    """

    what: str
    freeing: int
    slots: Tensor
    size: int


@dataclass
class Changes:
    """The changes of one ledger that are not entered yet.

    `unfollowed` are the kinds of change after which nobody knows what a slot holds.
    """

    ledger: Ledger
    unfollowed: tuple[str, ...] = (FILLED,)
    noted: list[Change] = field(default_factory=list)

    def note(self, what: str, slots: Tensor, forward: int = 0, source: str | None = None) -> None:
        """Note a change of slots. The engine may change the tensor afterwards.

        Slots that are freed are so before a forward, from a line of source.
        """
        size = slots.numel()
        if size:
            flat = slots if slots.dim() == 1 else slots.flatten()
            copied = flat.to(self.ledger.device, torch.int64, copy=True)
            freeing = self.ledger.note_freeing(forward, source) if what == FREED else 0
            self.noted.append(Change(what, freeing, copied, size))

    def enter(self) -> Freeing | None:
        """Bring the ledger up to date. Returns the slots that were freed; None without changes."""
        if not self.noted:
            return None
        noted, self.noted = self.noted, []
        places, number = self._in_order(noted)
        of_change = torch.tensor(
            [(change.freeing, change.what in self.unfollowed) for change in noted],
            dtype=torch.int32, device=self.ledger.device,
        )  # fmt: skip
        freed, unfollowed = of_change[number].unbind(1)
        if any(change.what in self.unfollowed for change in noted):
            self.ledger.forget(torch.where(unfollowed > 0, places, -1))
        column = self.ledger.wide[-1]
        another = places[1:] != places[:-1]
        first = torch.cat([another.new_ones(1), another])
        held = column[places]
        # The last freeing up to each change: its own, an earlier one here, or the column's.
        known = torch.where(freed != 0, freed, held.abs())
        steps = torch.arange(len(places), device=places.device)
        known = known[steps.masked_fill(~first & (freed == 0), 0).cummax(0).values]
        state = torch.where(freed != 0, known, -known)
        before = torch.where(first, held, state.roll(1))
        last = torch.cat([another, another.new_ones(1)])
        column[places[last]] = state[last]
        mine = (freed != 0) & (places < self.ledger.slots)
        return Freeing(self.ledger, places[mine], before[mine], freed[mine])

    def _in_order(self, noted: list[Change]) -> tuple[Tensor, Tensor]:
        """Return places of the ledger and numbers of changes, by place, then by number."""
        page = self.ledger.group.page_size
        places, numbers = [], []
        for whole in (False, True):
            chosen = [n for n, change in enumerate(noted) if (change.what != FILLED) == whole]
            if not chosen:
                continue
            slots = torch.cat([noted[n].slots for n in chosen])
            counts = torch.tensor([noted[n].size for n in chosen])
            number = torch.tensor(chosen).repeat_interleave(counts).to(slots.device)
            if whole and page > 1:
                first = slots.masked_fill(slots % page != 0, -page)
                slots = (first[:, None] + torch.arange(page, device=slots.device)).flatten()
                number = number.repeat_interleave(page)
            places.append(self.ledger.places(slots))
            numbers.append(number)
        place, number = torch.cat(places), torch.cat(numbers)
        order = (place * len(noted) + number).argsort()
        return place[order], number[order]


@dataclass
class Relayed:
    """Token ids that models were given before the host knew them, until it does."""

    waiting: OrderedDict[str, list[tuple[int, Tensor]]] = field(default_factory=OrderedDict)

    def add(self, model: str, row: Row, ids: Tensor) -> None:
        """Keep those of the ids of a row, int [n], that its tokens from `cached` on do not say."""
        tokens = row.tokens[row.cached :][: len(ids)]
        unknown = [place for place, token in enumerate(tokens) if token is None]
        if unknown:
            mine = self.waiting.setdefault(f"{model}{row.request}", [])
            mine += [(row.cached + place, ids[place].clone()) for place in unknown]
        while len(self.waiting) > MOST_WAITING:
            self.waiting.popitem(last=False)

    def known(self, forward: Forward) -> StaticInput | None:
        """Return the ids whose tokens a forward's rows know by now, with these, and drop them.

        Ids at positions that the forward computes again are dropped: an engine discards the last
        tokens of a request that it retracts, and may sample others.
        """
        ids, expected = [], []
        for row in forward.rows:
            rest, name = [], f"{forward.model}{row.request}"
            for position, value in self.waiting.pop(name, ()):
                if position >= row.cached:
                    continue
                token = row.tokens[position] if position < len(row.tokens) else None
                if token is None:
                    rest.append((position, value))
                else:
                    ids.append(value)
                    expected.append(token)
            if rest:
                self.waiting[name] = rest
        if not ids:
            return None
        given, wanted = torch.stack(ids), torch.tensor(expected)
        return StaticInput("input_ids", given, len(ids), len(ids), expected=wanted)


class Between(Boundary):
    """Holds the ledgers, and enters into them what happens between forwards."""

    def __init__(self, groups: Sequence[Group], journal: Journal, settings: Settings) -> None:
        super().__init__(journal, settings)
        names = Names()
        self.ledgers = {group.name: Ledger(group, names) for group in groups}
        # A slot that was allocated may have been written by a forward that was not checked.
        unfollowed = (FILLED,) if settings.every == 1 else (FILLED, ALLOCATED)
        self.changes = {name: Changes(one, unfollowed) for name, one in self.ledgers.items()}
        if settings.every > 1:  # Any slot may be filled before the first checked forward.
            for ledger in self.ledgers.values():
                ledger.forget_all()
        self.chains = Chains()
        self.number = 0
        self.relayed = Relayed()
        self.loading: dict[str, list[Tensor]] = {}
        """Per group, the slots that were filled since the last forward ended."""
        self.stored: OrderedDict[tuple[str, str], list[Tensor]] = OrderedDict()
        """What was known of slots whose bytes the engine stored elsewhere."""
        self.hosts: dict[str, list[Tensor]] = {}
        """Per group, what is known of each slot of its host pool."""

    @guarded
    def known(self, request: str, position: int, token: int) -> None:
        """Note the token of a request at a position, which was None when it was computed."""
        self.chains.known(request, position, token)

    @guarded
    def emptied(self) -> None:
        """Note that KV from before may not be read any more: a cache was emptied."""
        self.chains.empty()

    @guarded
    def allocated(self, group: str, slots: Tensor) -> None:
        """Note that the engine allocated slots, or the pages that begin with some of them."""
        self.note(group, ALLOCATED, slots)

    @guarded
    def freed(self, group: str, slots: Tensor, source: str | None = None) -> None:
        """Note that the engine freed slots, or the pages that begin with some of them.

        `source` is the line of the engine that did.
        """
        self.note(group, FREED, slots, source)

    @guarded
    def copied(self, group: str, source: Tensor, target: Tensor) -> None:
        """Note that the engine copied slots, `source[i]` to `target[i]`."""
        self.settle()
        self.ledgers[group].copy(source, target)

    @guarded
    def store(self, name: str, group: str, slots: Tensor) -> None:
        """Note that the engine copied slots to somewhere else, under a name."""
        self.settle()
        self.stored[name, group] = self.ledgers[group].entries(slots)
        while len(self.stored) > MOST_WAITING:
            self.stored.popitem(last=False)

    @guarded
    def load(self, name: str, group: str, slots: Tensor) -> None:
        """Note that the engine copied the first slots that it stored under a name to others."""
        self.settle()
        if (entries := self.stored.pop((name, group), None)) is not None:
            self.ledgers[group].enter(slots, entries)
        else:
            self.ledgers[group].forget(slots)

    @guarded
    def backed_up(self, group: str, slots: Tensor, places: Tensor, size: int) -> None:
        """Note that the engine copied slots to `places`, [n], of a host pool of `size` slots."""
        self.settle()
        entries = self.ledgers[group].entries(slots)
        if group not in self.hosts:
            self.hosts[group] = [column.new_zeros(size) for column in entries]
        for column, known in zip(self.hosts[group], entries, strict=True):
            column[places.to(column.device, torch.int64)] = known

    @guarded
    def loaded(self, group: str, slots: Tensor, places: Tensor) -> None:
        """Note that the engine copied slots back from `places`, [n], of a host pool.

        It may be called once per layer, on the stream of the copy. Waits for the copy. Where
        forwards are sampled it does not, and what the slots hold is not known.
        """
        ledger = self.ledgers[group]
        if group not in self.hosts or self.settings.every > 1:
            self.forget(group, slots)
            return
        self.settle()
        at = places.to(ledger.device, torch.int64)
        ledger.enter(slots, [column[at] for column in self.hosts[group]])
        self.journal.count(**{"slots and layers loaded from the host": len(slots)})
        if ledger.device.type == "cuda":
            torch.cuda.current_stream(ledger.device).synchronize()

    @guarded
    def forget(self, group: str, slots: Tensor | None) -> None:
        """Note that slots were filled by something that is not followed. None: any slot.

        They may still be filled while the forward under way, or else the next one, runs.
        """
        if slots is None:
            self.settle()
            self.ledgers[group].forget_all()
            slots = torch.arange(self.ledgers[group].slots)
        else:
            self.note(group, FILLED, slots)
        self.loading.setdefault(group, []).append(slots)

    def note(self, group: str, what: str, slots: Tensor, source: str | None = None) -> None:
        """Note a change of slots. Where forwards are sampled, it is entered with later ones.

        They are then entered where a forward runs: its stream waits for what was noted elsewhere.
        """
        self.changes[group].note(what, slots, self.number + 1, source)
        if self.settings.every == 1:
            self.settle()

    def settle(self) -> None:
        """Enter into the ledgers what was noted."""
        for changes in self.changes.values():
            if (freeing := changes.enter()) is not None:
                self.judge("freeing", freeing)

    @guarded
    def idle(
        self,
        groups: Mapping[str, tuple[Tensor, Tensor]],
        locked: Mapping[str, int] | None = None,
        rows: tuple[int, int] | None = None,
    ) -> None:
        """Judge, while nothing runs, the slots that are free and those in the prefix cache.

        `locked` counts, per group, the cached slots that the engine says it must keep. `rows` are
        the rows of the request table that are free, and all of them.
        """
        self.settle()
        for name, (free, cached) in groups.items():
            ledger = self.ledgers[name]
            count = (locked or {}).get(name, 0)
            found = Idle(self.number, ledger, ledger.index(free), ledger.index(cached), count)
            self.judge("idle", found)
        if rows is not None:
            self.judge("idle", IdleRows(self.number, *rows))
        self.journal.count(idle=1)

    @guarded
    def cached(self, group: str, slots: Tensor, evictable: int) -> None:
        """Judge the slots of a group that are in the prefix cache, between two forwards.

        `evictable` counts those that the engine says it may evict, now or once they are unlocked.
        """
        held = len(self.ledgers[group].index(slots).unique())
        self.judge("idle", Cached(self.number, group, held, evictable))

    @guarded
    def raised(self, error: BaseException, what: str, source: str | None, kind: str = "") -> None:
        """Judge an error that the engine raised. `what` says what it means, `source` where."""
        text = " ".join(str(error).split())[:LONGEST]
        self.judge("error", EngineError(self.number, what, text, source, kind))
