"""Follows what happens between forwards: allocations, frees, copies, and tokens that become known.

Each change is first noted as a copy of its slot numbers, without synchronising with a GPU. Before
anything is judged, `settle` waits for the copies, and applies the changes to the ledgers in order.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

import torch
from torch import Tensor

from paritybit.watch.bits import on_host
from paritybit.watch.boundary import Boundary, guarded
from paritybit.watch.chains import Chains
from paritybit.watch.facts import Forward, Group, HostSlots, Row, StaticInput
from paritybit.watch.journal import Journal
from paritybit.watch.ledger import ALLOCATED, SHARED, Ledger, Names, SlotCall
from paritybit.watch.observations import Cached, Freeing, IdleRows, IdleSlots
from paritybit.watch.reading import repeated
from paritybit.watch.settings import Settings
from paritybit.watch.stacks import NOWHERE, Stack, stack

MOST_WAITING = 4096
"""The most requests whose ids wait for their tokens."""

FREED, FILLED = "freed", "filled"

RESTORED, STORED = "restored from the host", "stored"
"""How the content of a slot came there."""

MOST_NOTED = 2**15
"""Number of noted changes of a group after which the next forward is checked."""


class SlotCopy:
    """A copy of slot numbers or token ids, made in the order of the current stream.

    The engine may modify its own tensor afterwards. Copies on a GPU are fetched together.
    """

    waiting: ClassVar[dict[torch.cuda.Stream, list["SlotCopy"]]] = {}
    """The copies that are still on a GPU, by the stream that made them."""
    lock: ClassVar = threading.Lock()

    def __init__(self, slots: Tensor) -> None:
        self.copy = slots.detach().to(torch.int64, copy=True).flatten()
        if slots.is_cuda:
            stream = torch.cuda.current_stream(slots.device)
            with self.lock:
                self.waiting.setdefault(stream, []).append(self)

    @property
    def slots(self) -> Tensor:
        """The numbers, int64 [n], on the host. Waits for the copies."""
        if self.copy.is_cuda:
            with self.lock:
                for stream in [*self.waiting]:
                    copies = self.waiting.pop(stream)
                    with torch.cuda.stream(stream):
                        hosts = on_host([one.copy for one in copies])
                    for one, host in zip(copies, hosts, strict=True):
                        one.copy = host
        return self.copy


@dataclass(frozen=True)
class Change:
    """A change of `size` slots. `call` is the number of the call that freed or allocated them.

    Pages are freed and allocated as a whole. A page is named by its first slot, and any other slot
    of a page is ignored.
    """

    what: str
    call: int
    slots: SlotCopy
    size: int


LedgerUpdate = Callable[[Ledger], None]
"""Another change of a ledger."""


@dataclass
class Changes:
    """The changes that are not yet applied to one ledger.

    After a change whose kind is in `unfollowed`, the content of a slot is unknown.
    """

    ledger: Ledger
    unfollowed: tuple[str, ...] = (FILLED,)
    noted: list[Change | LedgerUpdate] = field(default_factory=list)

    def note(self, what: str, slots: Tensor, call: SlotCall | None = None) -> None:
        """Note a change of slots by a call."""
        size = slots.numel()
        if size:
            number = 0 if call is None else self.ledger.note_call(what, call)
            self.noted.append(Change(what, number, SlotCopy(slots), size))

    def apply(self) -> Iterator[Freeing]:
        """Apply the changes to the ledger in order, and yield the slots that they freed."""
        noted, self.noted = self.noted, []
        for kind, part in groupby(noted, lambda one: one.what if isinstance(one, Change) else None):
            if kind is None:
                for step in part:
                    step(self.ledger)  # type: ignore[operator]
                continue
            changes = [one for one in part if isinstance(one, Change)]
            if kind == FREED:
                yield self._free(changes)
            else:
                self._use(kind, changes)

    def _free(self, changes: Sequence[Change]) -> Freeing:
        """Free slots. Returns them, and the numbers of the freeing before and of this one."""
        places, calls = self._places_of(changes, whole=True)
        places, order = places.sort(stable=True)
        column, mine, calls = self.ledger.extended[-1], places < self.ledger.slots, calls[order]
        again = places[1:] == places[:-1]
        before = column[places]
        before[1:] = torch.where(again, calls[:-1], before[1:])
        last = torch.nn.functional.pad(~again, (0, 1), value=True)
        column[places[last]] = calls[last]
        return Freeing(self.ledger, places[mine], before[mine], calls[mine])

    def _use(self, what: str, changes: Sequence[Change]) -> None:
        """Fill, allocate or share slots. The order of the changes does not matter."""
        places, calls = self._places_of(changes, whole=what != FILLED)
        if what in self.unfollowed:
            self.ledger.forget(places)
        if what != SHARED:
            column = self.ledger.extended[-1]
            column[places] = -column[places].abs()
        if what != FILLED:
            self.ledger.allocations[what][places] = calls

    def _places_of(self, changes: Sequence[Change], *, whole: bool) -> tuple[Tensor, Tensor]:
        """Return the indices in the ledger of slots, and the number of the call for each."""
        slots = torch.cat([change.slots.slots for change in changes])
        places = self._places(slots, whole=whole)
        page = len(places) // len(slots)
        calls = repeated([one.call for one in changes], [one.size * page for one in changes])
        return places, calls.int()

    def _places(self, slots: Tensor, *, whole: bool) -> Tensor:
        """Return the indices in the ledger of slots, or if `whole` of the slots of their pages."""
        page = self.ledger.group.page_size
        if whole and page > 1:
            first = slots.masked_fill(slots % page != 0, -page)
            slots = (first[:, None] + torch.arange(page)).flatten()
        return self.ledger.indices(slots)


@dataclass
class Relayed:
    """Token ids that a model got before the host knew them. They are kept until the host does."""

    waiting: OrderedDict[str, list[tuple[int, SlotCopy, int]]] = field(default_factory=OrderedDict)
    """By model and request, each position, and the copy of all ids with the place of its id."""

    def add(self, model: str, ids: Tensor, unknown: Sequence[tuple[Row, int, int]]) -> None:
        """Keep the ids, int [n], of some rows and positions. The last number is the place."""
        if unknown:
            copy = SlotCopy(ids)
        for row, position, place in unknown:
            mine = self.waiting.setdefault(f"{model}{row.request}", [])
            mine.append((position, copy, place))
        while len(self.waiting) > MOST_WAITING:
            self.waiting.popitem(last=False)

    def known(self, forward: Forward) -> StaticInput | None:
        """Return the kept ids whose tokens the rows of a forward now know, and drop them.

        Ids at positions that the forward computes again are dropped, too: an engine discards the
        last tokens of a request that it retracts, and may sample others.
        """
        ids, expected = list[int](), list[int]()
        for row in forward.rows:
            rest, name = [], f"{forward.model}{row.request}"
            for position, copy, place in self.waiting.pop(name, ()):
                if position >= row.cached:
                    continue
                token = row.tokens[position] if position < len(row.tokens) else None
                if token is None:
                    rest.append((position, copy, place))
                else:
                    ids.append(int(copy.slots[place]))
                    expected.append(token)
            if rest:
                self.waiting[name] = rest
        if not ids:
            return None
        given, wanted = torch.tensor(ids), torch.tensor(expected)
        return StaticInput("input_ids", given, len(ids), len(ids), expected=wanted)


class Between(Boundary):
    """Holds the ledgers, and applies to them what happens between forwards."""

    def __init__(
        self, groups: Sequence[Group], journal: Journal, settings: Settings, package: str
    ) -> None:
        super().__init__(journal, settings)
        self.package = package
        self.inner: tuple[str, ...] = ()
        """Parts of the paths of files that allocate and free slots on behalf of others."""
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
        self.loading: dict[str, list[SlotCopy]] = {}
        """The slots of each group that were filled since the last forward ended."""
        self.stored: dict[tuple[str, str], list[Tensor]] = {}
        """By pool on the host and group, the ledger entries of what its slots hold, and the numbers
        of the calls that stored it."""
        self.lost = False
        """Whether nothing that the ledgers say can be relied on."""
        devices = (one.checksums.device for one in self.ledgers.values())
        self.gpu = next((device for device in devices if device.type == "cuda"), None)
        """The GPU with the KV tensors, if they are on one."""
        self.copies: dict[int, torch.cuda.Event] = {}
        """Per stream of a GPU, the end of the last copy of slots to or from elsewhere."""
        self.filling: dict[int, torch.cuda.Event] = {}
        """The same of copies that fill slots, for which the next scan waits on the GPU."""
        self.copying: set[int] = set()
        """The threads that copied slots to or from elsewhere."""

    def note_copy(self, fills: bool = False) -> None:
        """Note that the engine enqueued a copy of slots, on the current stream.

        With `fills`, it fills slots. If a copy is reported before, call this once it is enqueued.
        """
        self.copying.add(threading.get_ident())
        if self.gpu is not None:
            stream = torch.cuda.current_stream(self.gpu)
            self.copies[stream.stream_id] = ended = stream.record_event()
            if fills:
                self.filling[stream.stream_id] = ended

    @guarded
    def emptied(self) -> None:
        """Record that a cache was emptied. KV from before must not be read any more."""
        self.chains.empty()

    @guarded
    def allocated(self, group: str, slots: Tensor, lines: Stack | None = None) -> None:
        """Record that the engine allocated slots, or the pages that begin at these slots.

        `lines` are the engine's that called for it, by default those that call now. If forwards are
        sampled, they are not looked for, which would take longest of what follows a skipped one.
        """
        if self.settings.every > 1:
            lines = NOWHERE
        self.changes[group].note(ALLOCATED, slots, self.call(lines))

    @guarded
    def shared(self, group: str, slots: Tensor, lines: Stack | None = None) -> None:
        """Record that a request got slots of the prefix cache, or of another request.

        The arguments are those of `allocated`. This is only reported.
        """
        self.changes[group].note(SHARED, slots, self.call(lines))

    @guarded
    def freed(self, group: str, slots: Tensor, lines: Stack | None = None) -> None:
        """Record that the engine freed slots. The arguments are those of `allocated`."""
        self.changes[group].note(FREED, slots, self.call(lines))

    def call(self, lines: Stack | None = None) -> SlotCall:
        """Return the call of the engine under way, before the next forward."""
        return SlotCall(self.number + 1, self.here() if lines is None else lines)

    def here(self) -> Stack:
        """Return the lines of the engine that call now."""
        return stack(self.package, inner=self.inner)

    @guarded
    def copied(self, group: str, source: Tensor, target: Tensor) -> None:
        """Record that the engine copied each slot `source[i]` to `target[i]`."""
        old, new, call = SlotCopy(source), SlotCopy(target), self.call()

        def copy(ledger: Ledger) -> None:
            ledger.copy(old.slots, new.slots)
            ledger.note_sources(new.slots, [("copied from another slot", call)])

        self.later(group, copy)

    @guarded
    def store(self, pool: str, group: str, slots: Tensor, places: Tensor, size: int) -> None:
        """Record that the engine copied the content of slots to a pool on the host.

        `places`, int64 [n], are the slots in the pool, which has `size` slots. The watcher does not
        wait for the copy. During a forward, it takes the content from before that forward: first
        `end` a forward whose writes are copied.
        """
        self.note_copy()
        key, call, mine, at = (pool, group), self.call(), SlotCopy(slots), SlotCopy(places)

        def store(ledger: Ledger) -> None:
            entries = ledger.entries(mine.slots)
            entries.append(torch.full_like(entries[-1], ledger.note_call(STORED, call)))
            if key not in self.stored:
                with torch.inference_mode(False):  # They are also changed outside of forwards.
                    self.stored[key] = [torch.zeros_like(one[:1]).repeat(size) for one in entries]
            for column, known in zip(self.stored[key], entries, strict=True):
                column[at.slots] = known

        self.later(group, store)

    @guarded
    def load(self, pool: str, group: str, slots: Tensor, places: Tensor) -> None:
        """Record that the engine copied into slots what is in the slots `places` of a pool.

        It may be called once per layer. If forwards are sampled, what a pool holds is unknown.
        """
        self.note_copy(fills=True)
        if self.settings.every > 1:
            self.forget(group, slots)
            return
        call, mine, at = self.call(), SlotCopy(slots), SlotCopy(places)

        def load(ledger: Ledger) -> None:
            if (known := self.stored.get((pool, group))) is None:
                ledger.forget(mine.slots)
                return
            *entries, calls = (column[at.slots] for column in known)
            ledger.enter(mine.slots, entries)
            before = ledger.calls.get(int(calls[0])) if len(calls) else None
            come = [(RESTORED, call)] if before is None else [(RESTORED, call), (STORED, before)]
            ledger.note_sources(mine.slots, come)

        self.later(group, load)

    @guarded
    def forget(self, group: str, slots: Tensor | None) -> None:
        """Record that slots were filled in an unknown way. None means any slot.

        The slots may still change during the current forward, or the next one if none runs.
        """
        if slots is None:
            self.later(group, Ledger.forget_all)
            slots = torch.arange(self.ledgers[group].slots)
        else:
            self.changes[group].note(FILLED, slots)
        self.loading.setdefault(group, []).append(SlotCopy(slots))

    def later(self, group: str, step: LedgerUpdate) -> None:
        """Note a change of a ledger. `settle` applies it."""
        noted = self.changes[group].noted
        if not (noted and noted[-1] is step):
            noted.append(step)

    def settle(self) -> None:
        """Apply all noted changes to the ledgers."""
        for ended in self.filling.values():
            torch.cuda.current_stream(self.gpu).wait_event(ended)
        self.filling.clear()
        if self.lost:
            for ledger in self.ledgers.values():
                ledger.start_anew()
            self.lost = False
        for changes in self.changes.values():
            for freeing in changes.apply():
                self.judge("freeing", freeing)

    def lose(self) -> None:
        """Forget everything that is known or noted. Nothing here can fail."""
        with self.lock:
            self.lost = True
            for changes in self.changes.values():
                changes.noted.clear()
            for held in (self.loading, self.relayed.waiting, self.stored):
                held.clear()

    @guarded
    def settled(self) -> None:
        """Apply all noted changes before the process ends."""
        self.settle()

    def judge(self, stage: str, observation: object) -> None:
        """Apply all noted changes, then run the selected checks of a stage."""
        try:
            if stage != "freeing":
                self.settle()
        finally:
            super().judge(stage, observation)

    @guarded
    def idle(
        self,
        groups: Mapping[str, tuple[Tensor, Tensor]],
        locked: Mapping[str, int] | None = None,
        rows: tuple[Sequence[int], int] | None = None,
        hosts: Mapping[str, HostSlots] | None = None,
    ) -> None:
        """Judge the free slots and the slots in the prefix cache while no request runs.

        `groups` has both for each group, and `locked` counts the cached slots that the engine
        reports as locked. `rows` are the free rows of the request table and the number of all rows.
        `hosts` are the pools on the host, by name.
        """
        self.settle()
        for name, (free, cached) in groups.items():
            ledger, count = self.ledgers[name], (locked or {}).get(name, 0)
            slots = ledger.index(free), ledger.index(cached)
            self.judge(
                "idle", IdleSlots(self.number, name, ledger.written(), *slots, count, ledger)
            )
        for name, host in (hosts or {}).items():
            used = torch.ones(host.size, dtype=torch.bool)
            slots = host.free, host.cached
            self.judge("idle", IdleSlots(self.number, name, used, *slots, host.locked))
        if rows is not None:
            self.judge("idle", IdleRows(self.number, *rows))
        self.journal.count(idle=1)

    @guarded
    def cached(self, group: str, slots: Tensor, evictable: int) -> None:
        """Judge the slots of a group in the prefix cache, between two forwards.

        `evictable` counts the slots that the engine can evict, now or after they are unlocked.
        """
        held = len(self.ledgers[group].index(slots).unique())
        self.judge("idle", Cached(self.number, group, held, evictable))
