"""The ledger records the last write and the last free of each slot in a group.

It takes 46 bytes per slot on the host, and four on the device of the KV tensors: the checksum at
the last scan. On a CPU, a small group has a snapshot instead: a copy of its bytes.

| field | bytes | meaning |
|---|---|---|
| chain | 8 | hash of the tokens for which the slot was last written; 0: unknown |
| checksum | 4 | checksum of the slot's bytes when it was written; 0: unknown |
| scanned | 4 | checksum at the last scan |
| request | 4 | number of the request that wrote the slot |
| position | 4 | position for which the slot was written |
| forward | 4 | forward that wrote the slot, or NEVER, UNWATCHED, MAYBE or FAILED |
| freed | 4 | number of the last call that freed the slot; negative: in use again; 0: never freed |
| allocations | 8 | numbers of the last calls that allocated and that shared the slot |
| earlier | 4 | forward that last wrote the slot for other tokens |
| carried | 1 | whether a copy brought the slot's content |
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.bits import Checksums, GroupSnapshot
from paritybit.watch.chains import UNKNOWN
from paritybit.watch.facts import Group
from paritybit.watch.stacks import Stack, described
from paritybit.watch.weak import weakened

ALLOCATED, SHARED = "allocated", "shared"
"""How a request gets a slot. A shared one is in the prefix cache, or another request has it."""

NEVER, UNWATCHED, MAYBE, FAILED = 0, -1, -2, -3
"""Special values of `forward`: never written, written while unwatched, possibly written, and not
written by a copy that failed."""

MOST_OVERWRITES = 20_000
MOST_NAMES = 200_000
MOST_CALLS = 200_000


@dataclass(frozen=True)
class SlotCall:
    """A call of the engine about slots, before a forward."""

    forward: int
    stack: Stack

    @property
    def who(self) -> dict[str, Any]:
        """The call for a finding: its forward, its line, and the lines around it."""
        source, via = described(self.stack)
        return {"forward": self.forward, "source": source, "via": via}

    def __str__(self) -> str:
        lines = ", ".join(filter(None, described(self.stack)))
        return f"before forward {self.forward}{f' by {lines}' if lines else ''}"


@dataclass
class Names:
    """Assigns numbers to the names of requests. The oldest names are forgotten."""

    numbers: OrderedDict[str, int] = field(default_factory=OrderedDict)
    names: dict[int, str] = field(default_factory=dict)
    last: int = 0

    def number(self, name: str) -> int:
        """Return the number of a name. A new name gets a new number."""
        if name not in self.numbers:
            self.last += 1
            self.numbers[name], self.names[self.last] = self.last, name
            if len(self.numbers) > MOST_NAMES:
                _, old = self.numbers.popitem(last=False)
                del self.names[old]
        return self.numbers[name]

    def name(self, number: int) -> str | None:
        """Return the name of a number, or None if the name was forgotten."""
        return self.names.get(number)


@dataclass(frozen=True)
class Overwrite:
    """A change of a slot by a forward that does not own it, or between forwards.

    `forward` is the one during or before which it was found.
    """

    forward: int
    what: str
    cause: Mapping[str, Any] | None = None


class Ledger:
    """The ledger of one KV group."""

    def __init__(self, group: Group, names: Names) -> None:
        self.group, self.names = weakened(group), names
        self.checksums = Checksums(group)
        self.slots = self.checksums.slots

        chain = torch.zeros(self.slots + 1, dtype=torch.int64)
        self.numbers = torch.zeros(6, self.slots + 1, dtype=torch.int32)
        self.extended = [chain, *(self.numbers[number] for number in range(6))]
        """The columns, each with one more entry, which absorbs writes to invalid slot numbers."""
        columns = (column[: self.slots] for column in self.extended)
        self.chain, self.checksum, self.scanned, self.request, self.position, *rest = columns
        self.forward, self.freed = rest
        self.open = False
        """Whether `Rerun.restoring` lets slots change now."""
        self.snapshot = GroupSnapshot.of(self.checksums)
        self.on_device = torch.empty(0, dtype=torch.int32)
        """The checksums of the last scan, on the device of the KV tensors, without a snapshot."""
        if self.snapshot is None:
            self.on_device = self.scanned.to(self.checksums.device, copy=True)
            self.checksums.changed(self.on_device)
            self.scanned.copy_(self.on_device)
        else:
            self.scanned.copy_(self.checksums.all())
        self.entered: list[Tensor] = []
        """The slots that got another slot's `scanned` since the last scan."""
        reserved = sorted(slot for slot in group.reserved if 0 <= slot < self.slots)
        self.reserved = torch.tensor(reserved, dtype=torch.int64)
        self.usable = torch.ones(self.slots + 1, dtype=torch.bool)
        """Which slots requests may use: not the reserved ones, and not the last entry."""
        self.usable[self.reserved] = False
        self.usable[-1] = False
        self.overwrites: OrderedDict[int, Overwrite] = OrderedDict()
        self.sources: OrderedDict[int, Sequence[tuple[str, SlotCall]]] = OrderedDict()
        """Where the content of a slot came from, if no forward wrote it, latest call first."""
        self.allocations = {one: torch.zeros_like(self.numbers[0]) for one in (ALLOCATED, SHARED)}
        """The numbers of the last calls that allocated a slot, and that shared it, or 0."""
        self.earlier = torch.zeros_like(self.numbers[0])
        """The forward that last wrote a slot for other tokens than it holds now."""
        self.carried = torch.zeros_like(self.usable)
        """Whether a copy brought the content of a slot."""
        self.calls: OrderedDict[int, SlotCall] = OrderedDict()
        self.last_calls: dict[str, int] = {}

    @property
    def layers(self) -> list[str]:
        """The name of the layer of each tensor."""
        return [layer.name for layer in self.group.layers for _ in layer.tensors]

    def tensor(self, number: int) -> str:
        """Return the name of a tensor."""
        layer = self.layers[number]
        return f"tensor {number - self.layers.index(layer)} of {layer}"

    def index(self, slots: Tensor) -> Tensor:
        """Return the valid slot numbers as int64 on the host. Drops all others."""
        slots = slots.to("cpu", torch.int64).flatten()
        valid = (slots >= 0) & (slots < self.slots)
        return slots if bool(valid.all()) else slots[valid]

    def indices(self, slots: Tensor) -> Tensor:
        """Return the indices of slots in `extended`, int64 [n], of invalid slots the last index."""
        slots = slots.to("cpu", torch.int64).flatten()
        return slots.clamp(-1, self.slots).remainder(self.slots + 1)  # -1 becomes the last index.

    def scan(self, expected: Tensor | None = None) -> Tensor | None:
        """Compute the checksums of all slots. Returns which changed since the last scan.

        With a snapshot, it computes only those of slots whose bytes changed, or that are `expected`
        to, int64 [n]. The result, bool [slots], is then None if nothing changed.
        """
        if self.snapshot is not None:
            if not self.entered and self.snapshot.same():
                return None
            changed = torch.zeros(self.slots, dtype=torch.bool)
            likely = [self.reserved, *self.entered, *([] if expected is None else [expected])]
            self.entered.clear()
            self._rescan(self.snapshot, torch.cat(likely), changed)
            others = self.snapshot.changed()
            if len(slots := others.nonzero().flatten()):
                self._rescan(self.snapshot, slots, changed)
                changed |= others
            return changed
        if self.entered:
            entered, device = torch.cat(self.entered), self.on_device.device
            there, known = (
                one.to(device, non_blocking=True) for one in (entered, self.scanned[entered])
            )
            self.on_device[there] = known
            self.entered.clear()
        changed = torch.zeros(self.slots, dtype=torch.bool)
        slots, now = self.checksums.changed(self.on_device)
        changed[slots], self.scanned[slots] = True, now
        return changed

    def look(self, slots: Tensor) -> Tensor:
        """Scan some slots, int64 [n], without a snapshot. Returns which changed, bool [slots]."""
        return self.seen(slots, self.looking(slots).cpu())

    def looking(self, slots: Tensor) -> Tensor:
        """Compute the checksums of some slots, on their device, for `seen`. Waits for no device."""
        there = slots.to(self.on_device.device, non_blocking=True)
        self.on_device[there] = now = self.checksums.there(there)
        return now

    def seen(self, slots: Tensor, now: Tensor) -> Tensor:
        """Note the checksums of slots, on the host. Returns which changed, bool [slots]."""
        changed, now = torch.zeros(self.slots, dtype=torch.bool), now.int()
        changed[slots] = now != self.scanned.index_select(0, slots)
        self.scanned[slots] = now
        return changed

    def _rescan(self, snapshot: GroupSnapshot, slots: Tensor, changed: Tensor) -> None:
        """Compute the checksums of some slots, and set those that changed in `changed`."""
        words = self.checksums.words(slots)
        snapshot.update(slots, words)
        now = self.checksums.of_words(words)
        changed[slots] |= now != self.scanned[slots]
        self.scanned[slots] = now

    def outside(self, changed: Tensor, owned: Tensor) -> Tensor:
        """Return the changed slots that are neither owned nor reserved, int64 [n]."""
        outside = changed & self.usable[:-1]
        outside[owned] = False
        return outside.nonzero().flatten()

    def write(
        self, slots: Tensor, chain: Tensor, request: Tensor, position: Tensor, forward: int
    ) -> None:
        """Record that a forward wrote some slots. Uses the checksums of the last scan."""
        another = (self.chain[slots] != chain) & (self.forward[slots] > 0)
        self.earlier[slots] = torch.where(another, self.forward[slots], self.earlier[slots])
        self.chain[slots] = chain
        self.checksum[slots] = self.scanned[slots]
        self.request[slots] = request
        self.position[slots] = position
        self.forward[slots] = forward
        self.carried[slots] = False
        self.mark_in_use(slots)
        self.forget_history(slots)

    def written(self) -> Tensor:
        """Return which slots were ever written, except reserved ones, bool [slots]."""
        return (self.forward != NEVER) & (self.forward != MAYBE) & self.usable[:-1]

    def mark_in_use(self, slots: Tensor) -> None:
        """Record that some slots are in use."""
        self.freed[slots] = -self.freed[slots].abs()

    def forget(self, slots: Tensor, written: int = UNWATCHED) -> None:
        """Record that the content of some slots is unknown. `slots` has any shape.

        `written` says how they were written, if at all.
        """
        indices = self.indices(slots)
        chain, checksum, *_, forward, _ = self.extended
        self.earlier[indices] = torch.where(forward > 0, forward, self.earlier)[indices]
        for column, value in ((chain, UNKNOWN), (checksum, 0), (forward, written)):
            column.index_fill_(0, indices, value)
        self.carried[indices] = False
        self.forget_history(indices)

    def forget_all(self) -> None:
        """Record that the content of every slot is unknown."""
        self.chain.fill_(UNKNOWN)
        self.checksum.fill_(0)
        untouched = (self.forward == NEVER) | (self.forward == MAYBE)
        self.forward.copy_(torch.where(untouched, MAYBE, UNWATCHED))
        self.overwrites.clear()
        self.sources.clear()

    def start_anew(self) -> None:
        """Record that nothing is known of any slot: neither its content nor whether it is free."""
        self.forget_all()
        self.freed.zero_()
        self.note_entered(torch.arange(self.slots))

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Record that the engine copied slots `source` to `target`."""
        old, new = self.indices(source), self.indices(target)
        pairs = zip(old.tolist(), new.tolist(), strict=True)
        moved = [(to, self.overwrites[slot]) for slot, to in pairs if slot in self.overwrites]
        self.enter(new, self.entries(old))
        for slot, overwrite in moved:
            self.note_overwrite([slot], overwrite)

    def entries(self, slots: Tensor) -> list[Tensor]:
        """Return the columns of some slots, except `freed`."""
        indices = self.indices(slots)
        return [column[indices] for column in self.extended[:-1]]

    def enter(self, slots: Tensor, entries: list[Tensor]) -> None:
        """Record that slots hold the content that `entries` describes."""
        indices = self.indices(slots)
        for column, known in zip(self.extended[:-1], entries, strict=True):
            column[indices] = known
        self.carried[indices] = True
        self.note_entered(indices)
        self.forget_history(indices)

    def note_entered(self, indices: Tensor) -> None:
        """Note that `scanned` may not be the checksum of the bytes at the last scan."""
        self.entered.append(self.index(indices))

    def note_overwrite(self, slots: list[int], overwrite: Overwrite) -> None:
        """Remember what changed some slots. An earlier overwrite of a slot is kept."""
        for slot in slots[:MOST_OVERWRITES]:
            self.overwrites.setdefault(slot, overwrite)
        while len(self.overwrites) > MOST_OVERWRITES:
            self.overwrites.popitem(last=False)

    def forget_history(self, slots: Tensor) -> None:
        """Forget what changed slots, and where they came from, as they were written again."""
        if self.overwrites or self.sources:
            for slot in slots.tolist():
                self.overwrites.pop(slot, None)
                self.sources.pop(slot, None)

    def note_sources(self, slots: Tensor, calls: Sequence[tuple[str, SlotCall]]) -> None:
        """Note which calls the content of slots came from, the latest first."""
        for slot in self.index(slots).tolist():
            self.sources[slot] = calls
        while len(self.sources) > MOST_OVERWRITES:
            self.sources.popitem(last=False)

    def writer(self, slot: int) -> dict[str, Any] | None:
        """Return the last writer of a slot, or None if none is known."""
        forward = int(self.forward[slot])
        if forward <= 0:
            return None
        return {
            "request": self.names.name(int(self.request[slot])),
            "position": int(self.position[slot]),
            "forward": forward,
        }

    def note_call(self, what: str, call: SlotCall) -> int:
        """Record a call that frees, allocates or stores slots. Returns its number. Numbers grow."""
        if self.calls.get(self.last_calls.get(what, 0)) != call:
            self.last_calls[what] = 1 + max(self.last_calls.values(), default=0)
            self.calls[self.last_calls[what]] = call
            if len(self.calls) > MOST_CALLS:
                self.calls.popitem(last=False)
        return self.last_calls[what]

    def last_allocation(self, slot: int) -> tuple[str, SlotCall] | None:
        """Return how a slot was given to a request last, and by which call. None if unknown."""
        number, what = max((int(calls[slot]), what) for what, calls in self.allocations.items())
        call = self.calls.get(number)
        return None if call is None else (what, call)

    def still_exclusive(self, slot: int) -> bool:
        """Return whether a slot is known to be neither freed since it was written, nor shared."""
        freed = self.calls.get(abs(int(self.freed[slot])))
        given, shared = (
            self.calls.get(int(self.allocations[one][slot])) for one in (ALLOCATED, SHARED)
        )
        if given is None or (freed is not None and freed.forward > int(self.forward[slot])):
            return False
        return shared is None or shared.forward < given.forward

    def freed_beside(self, slot: int) -> str | None:
        """Return when and at which line other slots of a slot's request were freed, as text."""
        alike = (self.request == self.request[slot]) & (self.freed > 0) & (self.forward > 0)
        calls = self.freed[alike]
        call = self.calls.get(int(calls.max())) if len(calls) else None
        return None if call is None else f"other slots of the request were freed {call}"

    def freed_since(self, slot: int, forward: int) -> dict[str, Any] | None:
        """Return the call that freed a slot last, if it is later than a forward."""
        call = self.calls.get(abs(int(self.freed[slot])))
        return call.who if call is not None and call.forward > forward else None

    def last_free(self, slot: int, reused: bool = False) -> dict[str, Any] | None:
        """Return the call that freed a slot, or None if the slot is in use.

        With `reused`, return it for a slot in use, too, if it is later than the forward that wrote
        the present or the previous tokens.
        """
        freed = int(self.freed[slot])
        call = self.calls.get(abs(freed))
        if call is None or (freed < 0 and not reused):
            return None
        wrote = (0 < int(column[slot]) < call.forward for column in (self.forward, self.earlier))
        return call.who if freed > 0 or any(wrote) else None
