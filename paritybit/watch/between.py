"""Follows what happens between forwards: allocations, frees, copies, and tokens that become known.

Each change is first noted as a copy of its slot numbers, without synchronising with a GPU. Before
anything is judged, `settle` waits for the copies, and applies the changes to the ledgers in order.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor

from paritybit.watch.bits import on_host
from paritybit.watch.boundary import Boundary, guarded
from paritybit.watch.chains import UNKNOWN, Chains
from paritybit.watch.facts import FORWARDS, At, Copy, Forward, Group, HostSlots, Row, StaticInput
from paritybit.watch.journal import Journal
from paritybit.watch.ledger import (
    ALLOCATED,
    FAILED,
    NEVER,
    SHARED,
    UNWATCHED,
    Ledger,
    Names,
    SlotCall,
)
from paritybit.watch.moves import AWAITS, LOOSE, SOURCE, TARGET, WRITTEN, Moves, Moving
from paritybit.watch.observations import (
    BY_KEY,
    Cached,
    DuringCopy,
    Freeing,
    IdleRows,
    IdleSlots,
    Unfinished,
)
from paritybit.watch.reading import repeated
from paritybit.watch.settings import Settings
from paritybit.watch.stacks import NOWHERE, Stack, stack

MOST_WAITING = 4096
"""The most requests whose ids wait for their tokens, and the most copies that have not ended."""

BEFORE = 8
"""The number of tokens that tell the requests of a name apart."""

FREED, FILLED, SKIPPED = "freed", "filled", "filled by a forward"
"""What happens to slots. The last is by a forward that is not checked."""

NOTED = {FREED: FREED, ALLOCATED: "handed out"}
"""The changes that are noted of slots of copies under way, and how they are called."""

LOOSENED = FREED, "evictable"
"""What happens to a place that the engine may reuse from then on."""

STORED = "stored"
"""How the content of a pool came there."""

UNDER_WAY = "copies under way: a slot was"
"""The prefix of counts of slots of copies under way, by what happened to them."""

ENGINE = "the engine"
"""Who frees a place."""

MOST_KEYS = 2**18
"""The most keys of a pool. What further ones name is unknown."""

DURING = "freeing", "copies"
"""The stages of checks that judge while changes are applied."""

WRITER = -2
"""The column with the forward that wrote a slot, among the entries of a pool."""

REQUEST = 3
"""The column with the number of the request that wrote a slot."""

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

During = Callable[[Ledger, str, Tensor, Tensor], None]
"""Gets a ledger, what happened, to which slots, and the numbers of the calls."""


@dataclass
class Changes:
    """The changes that are not yet applied to one ledger.

    After a change whose kind is in `unfollowed`, the content of a slot is unknown.
    """

    ledger: Ledger
    unfollowed: tuple[str, ...] = (FILLED, SKIPPED)
    noted: list[Change | LedgerUpdate] = field(default_factory=list)

    def note(self, what: str, slots: Tensor, call: SlotCall | None = None) -> None:
        """Note a change of slots by a call."""
        size = slots.numel()
        if size:
            number = 0 if call is None else self.ledger.note_call(what, call)
            self.noted.append(Change(what, number, SlotCopy(slots), size))

    def apply(self, during: During) -> Iterator[Freeing]:
        """Apply the changes to the ledger in order, and yield the slots that they freed."""
        noted, self.noted = self.noted, []
        for kind, part in groupby(noted, lambda one: one.what if isinstance(one, Change) else None):
            if kind is None:
                for step in part:
                    step(self.ledger)  # type: ignore[operator]
                continue
            changes = [one for one in part if isinstance(one, Change)]
            if kind == FREED:
                yield self._free(changes, during)
            else:
                self._use(kind, changes, during)

    def _free(self, changes: Sequence[Change], during: During) -> Freeing:
        """Free slots. Returns them, and the numbers of the freeing before and of this one."""
        places, calls = self._places_of(changes, whole=True)
        during(self.ledger, FREED, places, calls)
        places, order = places.sort(stable=True)
        column, mine, calls = self.ledger.extended[-1], places < self.ledger.slots, calls[order]
        again = places[1:] == places[:-1]
        before = column[places]
        before[1:] = torch.where(again, calls[:-1], before[1:])
        last = torch.nn.functional.pad(~again, (0, 1), value=True)
        column[places[last]] = calls[last]
        return Freeing(self.ledger, places[mine], before[mine], calls[mine])

    def _use(self, what: str, changes: Sequence[Change], during: During) -> None:
        """Fill, allocate or share slots. The order of the changes does not matter."""
        filled = what in (FILLED, SKIPPED)
        places, calls = self._places_of(changes, whole=not filled)
        during(self.ledger, what, places, calls)
        if what in self.unfollowed:
            self.ledger.forget(places)
        if what != SHARED:
            column = self.ledger.extended[-1]
            column[places] = -column[places].abs()
        if not filled:
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

    waiting: OrderedDict[str, list[tuple[int, SlotCopy, int, Sequence[int | None]]]] = field(
        default_factory=OrderedDict
    )
    """By model and request, each position, the copy of all ids with the place of its id, and up to
    BEFORE tokens before it."""

    def add(self, model: str, ids: Tensor, unknown: Sequence[tuple[Row, int, int]]) -> None:
        """Keep the ids, int [n], of some rows and positions. The last number is the place."""
        if unknown:
            copy = SlotCopy(ids)
        for row, position, place in unknown:
            mine = self.waiting.setdefault(f"{model}{row.request}", [])
            before = row.tokens[max(0, position - BEFORE) : position]
            mine.append((position, copy, place, before))
        while len(self.waiting) > MOST_WAITING:
            self.waiting.popitem(last=False)

    def known(self, forward: Forward) -> StaticInput | None:
        """Return the kept ids whose tokens the rows of a forward now know, and drop them.

        Ids at positions that the forward computes again are dropped, too: an engine discards the
        last tokens of a request that it retracts, and may sample others. So are those behind other
        tokens, which belong to an earlier request with the same name.
        """
        ids, expected = list[int](), list[int]()
        for row in forward.rows:
            rest, name = [], f"{forward.model}{row.request}"
            for position, copy, place, before in self.waiting.pop(name, ()):
                now = row.tokens[position - len(before) : position]
                other = any(
                    None not in pair and pair[0] != pair[1]
                    for pair in zip(before, now, strict=False)
                )
                if other or position >= row.cached:
                    continue
                token = row.tokens[position] if position < len(row.tokens) else None
                if token is None:
                    rest.append((position, copy, place, before))
                else:
                    ids.append(int(copy.slots[place]))
                    expected.append(token)
            if rest:
                self.waiting[name] = rest
        if not ids:
            return None
        given, wanted = torch.tensor(ids), torch.tensor(expected)
        return StaticInput("input_ids", given, len(ids), len(ids), expected=wanted)


def unknown(ledger: Ledger, size: int, written: int = UNWATCHED) -> list[Tensor]:
    """Return the entries of so many places whose content is unknown, but how it was `written`."""
    entries = [one.new_zeros(size) for one in ledger.extended]
    entries[WRITER].fill_(written)
    return entries


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
        unfollowed = (FILLED, SKIPPED) if settings.every == 1 else (FILLED, SKIPPED, ALLOCATED)
        self.changes = {name: Changes(one, unfollowed) for name, one in self.ledgers.items()}
        self.moves = {name: Moves() for name in self.ledgers}
        """The copies under way of each group."""
        self.copies_of: dict[str, set[str]] = {}
        """The groups of each copy that has begun, by its name."""
        self.running = set[str]()
        """Which of them are forwards."""
        self.waited = set[str]()
        """The copies that have ended since the last forward began."""
        self.keys: dict[str, dict[str, int]] = {}
        """The places of the keys of each pool."""
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
        self.loose: dict[tuple[str, str], Tensor] = {}
        """By pool elsewhere and group, which of its places the engine may reuse, bool [places]."""
        self.lost = False
        """Whether nothing that the ledgers say can be relied on."""
        self.gone = False
        """Whether it was ever lost, so that the watcher did not see all that was stored."""
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
    def dropped(self) -> None:
        """Record that the memory of all KV was given up, so no slot holds anything."""
        self.chains.empty()
        for group, ledger in self.ledgers.items():
            slots = torch.arange(ledger.slots)
            self.later(group, partial(Ledger.forget, slots=slots, written=NEVER))
            self.loading.setdefault(group, []).append(SlotCopy(slots))

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

    def store(self, pool: str, group: str, slots: Tensor, places: Tensor) -> None:
        """Record that the engine copied the content of slots to a pool: see `moved`."""
        self.moved(group, At(slots), At(places, pool))

    def load(self, pool: str, group: str, slots: Tensor, places: Tensor) -> None:
        """Record that the engine copied into slots what a pool holds: see `moved`.

        It may be called once per layer.
        """
        self.moved(group, At(places, pool), At(slots))

    @guarded
    def moved(self, group: str, source: At, target: At) -> None:
        """Record that the engine copied content from or to a pool elsewhere, or between pools.

        The watcher does not wait for the copy. During a forward, it takes the content from before
        that forward: first `end` a forward whose writes are copied. If forwards are sampled, what
        a pool holds is unknown.
        """
        loads = target.pool == ""
        self.note_copy(fills=loads)
        if loads and self.settings.every > 1:
            self.forget(group, target.slots)
            return
        call, old, new = self.call(), SlotCopy(source.slots), SlotCopy(target.slots)

        def move(ledger: Ledger) -> None:
            if source.pool == "":
                entries = ledger.entries(old.slots)
                entries.append(torch.full_like(entries[-1], ledger.note_call(STORED, call)))
            elif source.pool in self.keys or (source.pool, group) in self.stored:
                columns = self.table(source.pool, ledger, old.slots)
                entries = [column[old.slots.clamp(min=-1)] for column in columns]
                if source.pool in self.keys:
                    entries[WRITER][self.of_others(source.pool, ledger, old.slots)] = NEVER
            elif loads:
                ledger.forget(new.slots)
                return
            else:  # The pool was filled before the watcher began.
                entries = unknown(ledger, len(old.slots))
            if not loads:
                self.hold(target.pool, ledger, new.slots, entries)
                return
            *entries, calls = entries
            ledger.enter(new.slots, entries)
            before = ledger.calls.get(int(calls[0])) if len(calls) else None
            by = BY_KEY if source.pool in self.keys else ""
            come = (f"restored from the {source.pool}{by}", call)
            ledger.note_sources(new.slots, [come] if before is None else [come, (STORED, before)])

        self.later(group, move)

    def table(self, pool: str, ledger: Ledger, places: Tensor) -> list[Tensor]:
        """Return the columns of what a pool holds of a group, long enough for some places.

        The last entry is that of no place. Of what nothing stored, it is unknown whether something
        did if the watcher does not know the pool from its start.
        """
        key, most = (pool, ledger.group.name), int(places.max()) if len(places) else 0
        columns = self.stored.get(key)
        if columns is None or len(columns[0]) < most + 2:
            size = max(most + 2, 2 * len(columns[0]) if columns else 0)
            with torch.inference_mode(False):  # They are also changed outside of forwards.
                fresh = [one.new_zeros(size) for one in ledger.extended]
            if self.gone or pool in self.keys:
                fresh[WRITER].fill_(UNWATCHED)
            for new, old in zip(fresh, columns or (), strict=False):
                new[: len(old) - 1] = old[:-1]
            self.stored[key] = columns = fresh
        return columns

    def of_others(self, pool: str, ledger: Ledger, places: Tensor) -> Tensor:
        """Return which places of a pool hold what only other groups stored, bool [n]."""
        mine, other = (torch.zeros(len(places), dtype=torch.bool) for _ in range(2))
        for name in [name for one, name in self.stored if one == pool]:
            group = self.ledgers[name]
            stored = self.table(pool, group, places)[-1][places.clamp(min=-1)] != 0
            (mine if group is ledger else other).logical_or_(stored)
        return other & ~mine

    def hold(self, pool: str, ledger: Ledger, places: Tensor, entries: Sequence[Tensor]) -> None:
        """Set the entries of places of a pool. Those of places below 0 are dropped."""
        real = places >= 0
        for column, known in zip(self.table(pool, ledger, places), entries, strict=True):
            column[places[real]] = known[real]

    def places(self, pool: str, keys: Sequence[str], size: int = 1) -> Tensor:
        """Return the places of keys in a pool of files or the like, int64 [keys * size].

        Each key has `size` places. -1 if there are too many keys.
        """
        known = self.keys.setdefault(pool, {})
        for key in keys:
            if len(known) < MOST_KEYS:
                known.setdefault(key, len(known))
        first = torch.tensor([known.get(key, -1) for key in keys], dtype=torch.int64)
        slots = first[:, None] * size + torch.arange(size)
        return slots.masked_fill(first[:, None] < 0, -1).flatten()

    # What another process holds.

    def described(self, group: str, slots: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return what is known of slots, int64 [numbers, n], and what explains the numbers.

        The watcher of another process gets both by `received`.
        """
        with self.lock, torch.no_grad():
            self.settle()
            ledger = self.ledgers[group]
            known = torch.stack([column.long() for column in ledger.entries(slots)])
            known[0] = torch.tensor([self.chains.final(one) for one in known[0].tolist()])
            numbers = known[REQUEST].unique().tolist()
            names = {str(number): ledger.names.name(number) for number in numbers}
            return known, {"requests": names, "emptied": self.chains.emptied}

    def renamed(
        self, known: Tensor, about: Mapping[str, Any], row: tuple[str, Sequence[int], str]
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Return what another process `described`, with the own chain of a request for its chain.

        They differ if only one cache was emptied. `row` has its name, its tokens and its space.
        """
        request, tokens, space = row
        theirs, mine = (
            one.hashes(request, tokens, len(tokens), space)
            for one in (Chains(emptied=about["emptied"]), self.chains)
        )
        own = dict(zip(theirs, mine, strict=True))
        chain = torch.tensor([own.get(one, one) for one in known[0].tolist()])
        return torch.cat((chain[None], known[1:])), {**about, "emptied": self.chains.emptied}

    @guarded
    def received(self, group: str, slots: Tensor, known: Tensor, about: Mapping[str, Any]) -> None:
        """Record that a transfer brought into slots what another process knows: see `described`."""
        call, same = self.call(), about["emptied"] == self.chains.emptied

        def enter(ledger: Ledger) -> None:
            chain, *others = known.clone()
            entries = [chain if same else torch.full_like(chain, UNKNOWN), *others]
            for number, name in about["requests"].items():
                if name is not None:
                    mine = known[REQUEST] == int(number)
                    entries[REQUEST][mine] = ledger.names.number(name)
            entries[-1].clamp_(max=max(1, self.number))  # The other process counts other forwards.
            columns = zip(entries, ledger.extended, strict=False)
            ledger.enter(slots, [one.to(column.dtype) for one, column in columns])
            ledger.note_sources(slots, [("received from another engine", call)])

        self.later(group, enter)

    # Copies that take time.

    @guarded
    def begin_copies(self, name: str, copies: Sequence[Copy]) -> None:
        """Record that the engine begins a copy, in parts. It ends with `end_copies`.

        Until then, nothing may write what it reads, or read or write what it fills. Freeing these
        slots and handing them out is only counted, unless the copy keeps them: see `Copy.kept`.
        Also report when the bytes move: see `moved`. A name can be used again after its end.
        """
        call = self.call()
        self.copies_of.setdefault(name, set()).update(one.group for one in copies)
        self.journal.count(**{"copies begun": 1})
        for copy in copies:
            source, target = SlotCopy(copy.source.slots), SlotCopy(copy.target.slots)

            self.later(copy.group, partial(self.begin_copy, name, copy, call, source, target))
        if len(self.copies_of) > MOST_WAITING:  # The oldest may never end.
            self.end_copies(next(iter(self.copies_of)))

    def begin_copy(
        self,
        name: str,
        copy: Copy,
        call: SlotCall,
        source: SlotCopy,
        target: SlotCopy,
        ledger: Ledger,
    ) -> None:
        """Judge a copy that begins by those under way, and add it to them."""
        moving = Moving(name, copy, call, source.slots, target.slots)
        for act, side in () if copy.planned else ((SOURCE, "source"), (TARGET, "target")):
            given = moving.pool(side), moving.places(side), str(moving), copy.request
            queues = {copy.queue, *copy.after} - {""}
            self.judge_copies(self.against(ledger, act, *given, queues=queues))
        self.moves[copy.group].begin(moving)
        for side in copy.kept:
            pool, places = moving.pool(side), moving.places(side)
            loose = ledger.extended[-1] > 0 if pool == "" else self.loose_of(pool, ledger, places)
            free = places[(places >= 0) & loose[places.clamp(min=-1)]]
            self.judge_copies(self.of_engine(ledger, moving, side, free, LOOSE))

    @guarded
    def end_copies(self, name: str, failed: bool | Tensor = False) -> None:
        """Record that the engine knows that a copy is over, or that its stream waits for it.

        During a forward, it means that the forward waits before it uses what is copied: first `end`
        one that has run. `failed` says whether the copy failed, or which of its targets, int64 [n].
        """
        groups = self.copies_of.pop(name, None)
        if groups is None:
            return
        self.waited.add(name)
        if name not in self.running:
            self.journal.count(**{"copies finished": 1})
        self.running.discard(name)
        call, wrong = self.call(), SlotCopy(failed) if isinstance(failed, Tensor) else None

        def end(ledger: Ledger) -> None:
            for one in self.moves[ledger.group.name].end(name):
                if failed is False:
                    continue
                target = one.target
                if wrong is not None:
                    target = target[torch.isin(target, wrong.slots)]
                self.fail(ledger, one.copy.target.pool, target, call)

        for group in groups:
            self.later(group, end)

    @guarded
    def acknowledged(self, name: str) -> None:
        """Record that the engine takes a copy for over, although it still runs."""

        def judge(ledger: Ledger) -> None:
            for one in self.moves[ledger.group.name].under_way.get(name, ()):
                side = "target" if len(one.target) else "source"
                self.judge_copies(self.of_engine(ledger, one, side, one.places(side), AWAITS))

        for group in self.copies_of.get(name, ()):
            self.later(group, judge)

    @guarded
    def failed(self, group: str, at: At, lines: Stack | None = None) -> None:
        """Record that a copy to slots has failed, which may be known only after its end.

        `lines` are those of `allocated`.
        """
        call, slots = self.call(lines), SlotCopy(at.slots)
        self.later(group, lambda ledger: self.fail(ledger, at.pool, slots.slots, call))

    def fail(self, ledger: Ledger, pool: str, places: Tensor, call: SlotCall) -> None:
        """Note that a copy to places failed, so that nobody may read them."""
        if pool == "":
            ledger.forget(places, FAILED)
            ledger.note_sources(places, [("a copy to it failed", call)])
        else:
            self.hold(pool, ledger, places, unknown(ledger, len(places), FAILED))

    @guarded
    def happened(self, what: str, group: str, at: At, lines: Stack | None = None) -> None:
        """Record that slots of a pool were "freed", "handed out" or "evicted", or are "evictable".

        This is counted and explains findings, if a copy of the slots is under way. `freed` and
        `allocated` do so for slots of a KV group. What is free or evictable must not be `kept` by a
        copy, until it is "handed out" or "pinned". `lines` are those of `allocated`.
        """
        call, slots = self.call(lines), SlotCopy(at.slots)

        def note(ledger: Ledger) -> None:
            self.loose_of(at.pool, ledger, slots.slots)[slots.slots] = what in LOOSENED
            self.note_during(ledger, what, at.pool, slots.slots, lambda _: call)

        self.later(group, note)

    def note_during(
        self,
        ledger: Ledger,
        what: str,
        pool: str,
        places: Tensor,
        call: Callable[[int], SlotCall | None],
    ) -> None:
        """Count and note what happened to places of copies under way."""
        number = self.moves[ledger.group.name].note(what, pool, places, call)
        if number:
            self.journal.count(**{f"{UNDER_WAY} {what}": number})
        if number and what in LOOSENED:
            self.judge_copies(self.against(ledger, LOOSE, pool, places, ENGINE))

    def loose_of(self, pool: str, ledger: Ledger, places: Tensor) -> Tensor:
        """Return which places of a pool the engine may reuse, bool [n], for some places at least.

        The last entry is that of no place.
        """
        key, most = (pool, ledger.group.name), int(places.max()) if len(places) else 0
        with torch.inference_mode(False):  # It is also changed outside of forwards.
            found = self.loose.setdefault(key, torch.zeros(1, dtype=torch.bool))
            if len(found) < most + 2:
                fresh = torch.zeros(max(most + 2, 2 * len(found)), dtype=torch.bool)
                fresh[: len(found) - 1] = found[:-1]
                self.loose[key] = found = fresh
        return found

    def of_engine(
        self, ledger: Ledger, moving: Moving, side: str, places: Tensor, act: str
    ) -> Iterator[DuringCopy]:
        """Yield what the engine does against a copy under way, if there are places."""
        if len(places):
            yield DuringCopy(self.number, ledger, moving, side, places, act, ENGINE)

    def change_during(self, ledger: Ledger, what: str, slots: Tensor, calls: Tensor) -> None:
        """Note or judge a change of slots of copies under way."""
        if what == SKIPPED:
            who = "a forward that is not checked"
            self.judge_copies(self.against(ledger, WRITTEN, "", slots, who, queues=(FORWARDS,)))
        elif what in NOTED:
            self.note_during(
                ledger, NOTED[what], "", slots, lambda at: ledger.calls.get(int(calls[at]))
            )

    def against(
        self,
        ledger: Ledger,
        act: str,
        pool: str,
        places: Tensor,
        who: str,
        request: str | None = None,
        *,
        queues: Collection[str] = (),
        during: str = "",
    ) -> Iterator[DuringCopy]:
        """Yield what is done to places of a pool, int64 [n], against copies under way."""
        moves = self.moves[ledger.group.name]
        if any(one.copy.queue not in queues for one in moves):
            self.compared("copies", len(places))
            for moving, side, mask in moves.of(act, pool, places, queues):
                given = ledger, moving, side, places[mask], act, who, request or None, during
                yield DuringCopy(self.number, *given)

    def judge_copies(self, found: Iterable[DuringCopy]) -> None:
        """Judge what is done against copies under way."""
        for one in found:
            if one.act == WRITTEN:
                self.journal.count(**{f"{UNDER_WAY} written": len(one.places)})
            self.judge("copies", one)

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
            for freeing in changes.apply(self.change_during):
                self.judge("freeing", freeing)

    def lose(self) -> None:
        """Forget everything that is known or noted. Nothing here can fail."""
        with self.lock:
            self.lost = self.gone = True
            for changes in self.changes.values():
                changes.noted.clear()
            for held in (
                *(self.loading, self.relayed.waiting, self.stored, self.copies_of, self.loose),
            ):
                held.clear()
            self.running.clear()
            for moves in self.moves.values():
                moves.clear()

    @guarded
    def settled(self) -> None:
        """Apply all noted changes before the process ends."""
        self.settle()

    def judge(self, stage: str, observation: object) -> None:
        """Apply all noted changes, then run the selected checks of a stage."""
        try:
            if stage not in DURING:
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
            for moving in (one for moves in self.moves.values() for one in moves):
                if host.pool in {moving.pool("source"), moving.pool("target")} - {""}:
                    self.judge("idle", Unfinished(self.number, moving))
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
