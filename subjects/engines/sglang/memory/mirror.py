"""An engine's pool kept in step with a world: the same requests, in slots of the engine's own.

The world's scheduler says who owns what; the engine's own host code then gives and takes.
Between both lies a bijection of slots, through which all KV can be read in the
world's layout and slot numbers, and written.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from paritybit.reference.allocator import Numbers, Owner, Ownership
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind
from paritybit.subjects.engines.sglang.memory.pool import SglangPool
from paritybit.subjects.engines.sglang.memory.scheduling import Asked, Scheduling
from paritybit.subjects.engines.shared.paired import (
    PairedKV,
    Plane,
    inverse,
    pair_slots,
    unpaired_of,
)
from paritybit.subjects.engines.shared.world import World
from torch import Tensor


@dataclass
class Held:
    """What the engine holds for a request: its row, its tokens, and how many lost their SWA KV.

    It takes the request to have `length` tokens. `unseen` of them had lost their SWA pages in the
    world when the engine was last told to evict; `drafting` says whether the last slots that it
    was given are drafts'.
    """

    row: int
    tokens: int = 0
    evicted: int = 0
    length: int = 0
    unseen: int = 0
    drafting: bool = False


class Mirror(PairedKV):
    """The engine's side of a world's requests, by its own host code, `scheduling`.

    `scheduled` is the engine's own batch of what was last placed, None of one with drafts.
    """

    def __init__(
        self,
        pool: SglangPool,
        world: World,
        scheduling: Scheduling,
    ) -> None:
        self.pool = pool
        self.world = world
        self.pools = world.pools
        self.scheduling = scheduling
        self.held: dict[int, Held] = {}
        self._forget()
        self._pair_slots(())

    def _forget(self) -> None:
        self.held.clear()
        self.scheduled: Any = None
        self._placed: tuple[Mode, tuple[Asked, ...]] | None = None
        self._freed = False

    def reset(self) -> None:
        """Hold nothing."""
        self.scheduling.clear()
        self.pool.clear()
        self._forget()
        self._pair_slots(())
        self.write_kv()

    def place(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Give a batch's requests rows and slots; return both, int64 [B] and [T].

        A batch that has its slots keeps them. Raises RuntimeError if the engine gave up a SWA slot
        that a window still needs.
        """
        owners, moved = self.world.owners(), self._freed
        self._freed = False
        asked = self._asked(batch, {owner.row: owner.serial for owner in owners})
        if batch.mode not in KNOWN or self._placed != (batch.mode, asked):
            moved |= self._give(batch.mode, asked)
            self._placed = batch.mode, asked
        if moved:
            self._pair_slots(owners)
            self.write_kv()
        placed = [self.held[one.serial] for one in asked]
        self._check_windows(batch.mode, asked)
        rows = torch.tensor([held.row for held in placed], device=batch.positions.device)
        locs = [
            self.pool.held(held.row, one.begin, one.end)
            for held, one in zip(placed, asked, strict=True)
        ]
        return rows, torch.cat(locs)

    def ownership(self) -> Ownership:
        """Return who holds which pages and rows, as the engine's allocator and tables have it.

        A request holds the pages that its row of the request table names, and of the SWA
        sub-pool those that they map to, but for what left its window. State slots are the
        world's: the engine manages none here.
        """
        pool, size = self.pool, self.pool.sizes.page_size
        states = {owner.serial: owner.state_slot for owner in self.world.owners()}
        holders = []
        for serial, held in self.held.items():
            tokens = max(held.tokens, self.scheduling.reserved(serial))
            slots = pool.held(held.row, 0, tokens)[::size]
            full = [slot // size for slot in slots.tolist()]
            swa = [slot // size for slot in pool.mapping[slots].tolist()]
            kept = range(held.evicted // size, len(full))
            pages = tuple(swa[place] if place in kept else None for place in range(len(full)))
            state = states.get(serial, 0)
            holders.append(Owner(serial, held.row, state, tokens, size, tuple(full), pages))
        return Ownership(
            holders=tuple(holders),
            all=Numbers(*pool.pages, pool.rows, tuple(one.state_slot for one in holders)),
            free_full=tuple(pool.free_pages(Kind.FULL)),
            free_swa=tuple(pool.free_pages(Kind.SWA)),
            free_rows=tuple(pool.requests.free_slots),
            free_states=(),
            mapping=pool.mapping,
            req_to_token=pool.requests.req_to_token,
        )

    def _asked(self, batch: ForwardBatch, serials: Mapping[int, int]) -> tuple[Asked, ...]:
        """Return what a batch asks for; of known tokens, which they are."""
        spans = batch.spans
        if batch.mode not in KNOWN:
            return tuple(Asked(serials[span.row], span.begin, span.end) for span in spans)
        tokens = iter(batch.input_ids.tolist())
        return tuple(
            Asked(
                serials[span.row],
                span.begin,
                span.end,
                tuple(islice(tokens, span.end - span.begin)),
            )
            for span in spans
        )

    def _give(self, mode: Mode, asked: Sequence[Asked]) -> bool:
        """Let the engine give rows and slots; return whether any changed hands."""
        known, size = mode in KNOWN, self.pool.sizes.page_size
        self.scheduled = None
        if not known:
            asked = [
                replace(one, begin=self.held[one.serial].tokens)
                for one in asked
                if self.held[one.serial].tokens < one.end
            ]
            if not asked:
                return False
        # An engine with pages wants room for one more of each request than it may take.
        room = [one.end - one.begin + (size if size > 1 else 0) for one in asked]
        self.pool.make_room(sum(room))
        if known:
            give = self.scheduling.extend if mode is Mode.EXTEND else self.scheduling.decode
            self.scheduled = give(asked)
        else:
            self.scheduling.draft(asked)
        for one in asked:
            row = self.scheduling.row(one.serial)
            held = self.held.setdefault(one.serial, Held(row))
            held.tokens = max(held.tokens, one.end)
            held.length = one.end if known else held.length
            held.evicted, held.drafting = self.scheduling.evicted(one.serial), not known
        return True

    def _check_windows(self, mode: Mode, asked: Sequence[Asked]) -> None:
        """Raise RuntimeError if the engine evicted a token that a window of a batch reaches."""
        for one in asked:
            first = one.begin - (mode is Mode.FROZEN_DRAFT) - self.pool.config.window + 1
            evicted = self.held[one.serial].evicted
            if evicted > max(first, 0):
                raise RuntimeError(
                    f"the engine freed the SWA slots of the first {evicted} tokens of"
                    f" request {one.serial}, but its window begins at token {max(first, 0)}"
                )

    def follow(self) -> None:
        """Free what the world has freed since: requests, what left windows, rejected drafts.

        The KV of accepted drafts has then been moved up, and of what is behind it the pages
        that hold none of it are freed. So does the engine's own verify of trees in pages; without
        pages it frees the slots of rejected drafts wherever they lie. Which slots those are is
        therefore ours, freeing them its. Later releases reserve both for the drafts to come.
        """
        if not self.held:
            return
        running = {owner.serial: owner for owner in self.world.owners()}
        for serial, held in list(self.held.items()):
            owner = running.get(serial)
            if owner is not None:
                self._follow(owner, held)
                continue
            del self.held[serial]
            self._freed = True
            if serial in self.world.retracted():
                self.scheduling.retract(serial)
            else:
                self.scheduling.finish(serial)

    def _follow(self, owner: Owner, held: Held) -> None:
        """Free what the world has freed of a running request."""
        serial, kept = owner.serial, len(owner.full_pages) * self.pool.sizes.page_size
        if held.tokens > kept:
            self.scheduling.drop(serial, kept, held.tokens)
            held.tokens = kept
            self._freed = True
        if held.drafting and held.length != owner.length:
            self.scheduling.advance(serial, owner.length)
            held.length = owner.length
        unseen = min(self.evicted_of(owner), held.tokens)
        if unseen > held.unseen:
            self.scheduling.evict(serial, owner.length, unseen)
            held.unseen, held.evicted = unseen, self.scheduling.evicted(serial)
            self._freed = True

    def _planes(self) -> Iterator[Plane]:
        """Yield K or V of each layer of each model."""
        for role, config in self.pool.configs.items():
            for layer, kind in enumerate(config.layers):
                cache, held = self.pools[role].cache(layer), self.pool.keys_and_values(role, layer)
                for plane, buffer in zip(cache, held, strict=True):
                    yield Plane(plane, buffer, self._places[kind], self._unpaired[kind])

    def ours(self, kind: Kind, slots: Collection[int]) -> list[int]:
        """Return the world's slots of some of the engine's, -1 for what is no slot."""
        known = self._ours[kind]
        return [known[slot] if 0 <= slot < len(known) else -1 for slot in slots]

    def evicted_of(self, owner: Owner) -> int:
        """Return how many of a request's first tokens have no SWA slot in the world any more."""
        pages = owner.swa_pages
        kept = next((index for index, page in enumerate(pages) if page is not None), len(pages))
        return kept * self.pool.sizes.page_size

    def _pair_slots(self, owners: Sequence[Owner]) -> None:
        """Pair our slots with the engine's: by request and position, and what is free in order.

        A token that has lost its SWA slot on either side has no counterpart on the other, nor
        has a slot that the engine reserves for a draft to come.
        """
        sizes, size = self.pool.sizes, self.pool.sizes.page_size
        ours: dict[Kind, list[int]] = {Kind.FULL: [], Kind.SWA: []}
        theirs: dict[Kind, list[Tensor]] = {Kind.FULL: [], Kind.SWA: []}
        longer, ahead = list[Tensor](), list[Tensor]()
        for owner in owners:
            held = self.held.get(owner.serial)
            if held is None:
                continue
            lost = max(held.evicted, min(self.evicted_of(owner), held.tokens))
            longer.append(self.pool.held(held.row, held.evicted, lost))
            reserved = self.scheduling.reserved(owner.serial)
            ahead.append(self.pool.held(held.row, held.tokens, max(held.tokens, reserved)))
            for kind, pages, first in (
                (Kind.FULL, owner.full_pages, 0),
                (Kind.SWA, owner.swa_pages, lost),
            ):
                for token in range(first, held.tokens):
                    page = pages[token // size]
                    assert page is not None
                    ours[kind].append(page * size + token % size)
                theirs[kind].append(self.pool.held(held.row, first, held.tokens))
        nothing = torch.zeros(0, dtype=torch.int64, device=self.pool.device)
        self._places, self._ours, self._unpaired = {}, {}, {}
        for kind in Kind:
            found, apart = torch.cat([nothing, *theirs[kind]]), torch.cat([nothing, *ahead])
            if kind is Kind.SWA:
                found = self._translated(found)
                apart = self._translated(torch.cat([apart, *longer]))
            paired = pair_slots(
                sizes.slots(kind),
                size,
                ours[kind],
                found.tolist(),
                self.pool.apart(kind) + apart.tolist(),
                self.pool.slots(kind),
            )
            self._places[kind] = torch.tensor(paired, device=self.pool.device)
            self._ours[kind] = inverse(paired)
            unpaired = unpaired_of(paired, self.pool.slots(kind), self.pool.apart(kind))
            self._unpaired[kind] = unpaired.to(self.pool.device)

    def _translated(self, slots: Tensor) -> Tensor:
        return self.pool.translate(slots) if len(slots) else slots


KNOWN = frozenset({Mode.EXTEND, Mode.DECODE})
"""Modes whose tokens are known: the engine's own batches give their slots."""
