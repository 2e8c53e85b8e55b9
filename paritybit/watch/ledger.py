"""What is known of each slot of a group: 32 bytes per slot, on the device of the KV tensors.

| field | bytes | meaning |
|---|---|---|
| chain | 8 | hash of the tokens for which it was last written; 0: not known |
| checksum | 4 | folded checksum of its bytes when it was written; 0: not known |
| before | 4 | folded checksum at the last frame |
| request | 4 | number of the request that wrote it |
| position | 4 | position for which it was written |
| forward | 4 | forward that wrote it; 0: never, -1: one that nobody watched, -2: if any |
| freed | 4 | number of the call that freed it last; negative if it is in use again; 0: none did |
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.bits import Checksums
from paritybit.watch.chains import UNKNOWN
from paritybit.watch.facts import Group

NEVER, UNSEEN, MAYBE = 0, -1, -2
"""In place of a forward: never written, written while nobody watched, perhaps written."""

FRAME = 2**18
"""Slots whose checksums are held at once while a frame is taken."""

MOST_STORIES = 20_000
MOST_NAMES = 200_000
MOST_FREEINGS = 200_000


def folded(checksums: Tensor) -> Tensor:
    """Return int32 of int64 checksums; never 0, which means "not known"."""
    small = (checksums ^ (checksums >> 32)).to(torch.int32)
    return small.masked_fill_(small == 0, 1)


@dataclass
class Names:
    """Numbers for the names of requests. The oldest are forgotten."""

    numbers: OrderedDict[str, int] = field(default_factory=OrderedDict)
    names: dict[int, str] = field(default_factory=dict)
    last: int = 0

    def number(self, name: str) -> int:
        """Return the number of a name, a new one if it has none."""
        if name not in self.numbers:
            self.last += 1
            self.numbers[name], self.names[self.last] = self.last, name
            if len(self.numbers) > MOST_NAMES:
                _, old = self.numbers.popitem(last=False)
                del self.names[old]
        return self.numbers[name]

    def name(self, number: int) -> str | None:
        """Return the name of a number, or None if it is forgotten."""
        return self.names.get(number)


@dataclass(frozen=True)
class Story:
    """A change of a slot by someone who does not own it: when, and what explains it."""

    forward: int
    what: str
    cause: Mapping[str, Any] | None = None


class Ledger:
    """The ledger of one group."""

    def __init__(self, group: Group, names: Names) -> None:
        self.group, self.names = group, names
        self.checksums = Checksums(group)
        self.slots, self.device = self.checksums.slots, self.checksums.device

        # The last entry of each column takes what is said of slots that are none.
        self.wide = [
            torch.zeros(self.slots + 1, dtype=dtype, device=self.device)
            for dtype in (torch.int64, *[torch.int32] * 6)
        ]
        self.chain, self.checksum, self.before, self.request, self.position, *rest = self.columns()
        self.forward, self.freed = rest
        reserved = sorted(slot for slot in group.reserved if 0 <= slot < self.slots)
        self.reserved = torch.tensor(reserved, dtype=torch.int64, device=self.device)
        self.stories: OrderedDict[int, Story] = OrderedDict()
        self.freeings: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self.last_freeing = 0

    def columns(self) -> list[Tensor]:
        """Return all columns, [slots] each."""
        return [column[: self.slots] for column in self.wide]

    def index(self, slots: Tensor) -> Tensor:
        """Return slot numbers as int64 on the ledger's device, without those of no slot."""
        slots = slots.to(self.device, torch.int64).flatten()
        return slots[(slots >= 0) & (slots < self.slots)]

    def places(self, slots: Tensor) -> Tensor:
        """Return the places of slots in the wide columns, int64 [n], without waiting for a GPU."""
        slots = slots.to(self.device, torch.int64).flatten()
        return slots.masked_fill((slots < 0) | (slots >= self.slots), self.slots)

    def frame(self) -> Tensor:
        """Take a frame. Returns whether each slot changed since the last one, bool [slots]."""
        changed = torch.empty(self.slots, dtype=torch.bool, device=self.device)
        for first in range(0, self.slots, FRAME):
            last = min(first + FRAME, self.slots)
            now = folded(self.checksums.all(first, last))
            torch.ne(now, self.before[first:last], out=changed[first:last])
            self.before[first:last] = now
        return changed

    def reframe(self, slots: Tensor, changed: Tensor) -> None:
        """Take the frame of some slots alone, and note in `changed` which of them changed."""
        now = folded(self.checksums.of(slots))
        changed[slots] |= now != self.before[slots]
        self.before[slots] = now

    def outside(self, changed: Tensor, owned: Tensor) -> Tensor:
        """Return which of the changed slots are neither owned nor reserved, int64 [n]."""
        outside = changed.clone()
        outside[self.reserved] = False
        outside[owned] = False
        return outside.nonzero().flatten()

    def write(
        self, slots: Tensor, chain: Tensor, request: Tensor, position: Tensor, forward: int
    ) -> None:
        """Note that a forward wrote some slots. Their checksums are those of the last frame."""
        self.chain[slots] = chain
        self.checksum[slots] = self.before[slots]
        self.request[slots] = request
        self.position[slots] = position
        self.forward[slots] = forward
        self.use(slots)
        self.forget_stories(slots)

    def use(self, slots: Tensor) -> None:
        """Note that some slots are in use."""
        self.freed[slots] = -self.freed[slots].abs()

    def forget(self, slots: Tensor) -> None:
        """Note that some slots, of any shape, hold bytes that nobody followed."""
        places = self.places(slots)
        chain, checksum, *_, forward, _ = self.wide
        for column, value in ((chain, UNKNOWN), (checksum, 0), (forward, UNSEEN)):
            column.index_fill_(0, places, value)
        self.forget_stories(places)

    def forget_all(self) -> None:
        """Note that any slot may hold bytes that nobody followed."""
        self.chain.fill_(UNKNOWN)
        self.checksum.fill_(0)
        untouched = (self.forward == NEVER) | (self.forward == MAYBE)
        self.forward.copy_(torch.where(untouched, MAYBE, UNSEEN))
        self.stories.clear()

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Note that the engine copied slots: the copies hold what their sources hold."""
        old, new = self.places(source), self.places(target)
        for column in self.wide[:-1]:
            column[new] = column[old]
        if not self.stories:
            return
        told = [self.stories.get(slot) for slot in old.tolist()]
        self.forget_stories(new)
        for slot, story in zip(new.tolist(), told, strict=True):
            if story is not None:
                self.tell([slot], story)

    def entries(self, slots: Tensor) -> list[Tensor]:
        """Return what is known of some slots, whether they are free apart."""
        places = self.places(slots)
        return [column[places] for column in self.wide[:-1]]

    def enter(self, slots: Tensor, entries: list[Tensor]) -> None:
        """Note that some slots hold what others did when their entries were taken."""
        places = self.places(slots)
        for column, known in zip(self.wide[:-1], entries, strict=True):
            column[places] = known[: len(places)]
        self.forget_stories(places)

    def tell(self, slots: list[int], story: Story) -> None:
        """Remember what changed some slots. The first story of a slot stays."""
        for slot in slots[:MOST_STORIES]:
            self.stories.setdefault(slot, story)
        while len(self.stories) > MOST_STORIES:
            self.stories.popitem(last=False)

    def forget_stories(self, slots: Tensor) -> None:
        """Drop the stories of slots that were written anew."""
        if self.stories:
            for slot in slots.tolist():
                self.stories.pop(slot, None)

    def writer(self, slot: int) -> dict[str, Any] | None:
        """Return who wrote a slot last, or None if nobody did or nobody knows."""
        forward = int(self.forward[slot])
        if forward <= 0:
            return None
        return {
            "request": self.names.name(int(self.request[slot])),
            "position": int(self.position[slot]),
            "forward": forward,
        }

    def note_freeing(self, forward: int, source: str | None) -> int:
        """Return the number of a call that frees slots before a forward, from a line of source."""
        call = {"forward": forward, "source": source}
        if self.freeings.get(self.last_freeing) != call:
            self.last_freeing += 1
            self.freeings[self.last_freeing] = call
            if len(self.freeings) > MOST_FREEINGS:
                self.freeings.popitem(last=False)
        return self.last_freeing

    def freeing(self, slot: int, reused: bool = False) -> dict[str, Any] | None:
        """Return which call freed a slot, or None if it is in use.

        With `reused`, return which call freed it last, though it may be in use again.
        """
        freed = int(self.freed[slot])
        return self.freeings.get(abs(freed) if reused else freed)
