"""An engine's pool kept in step with a world: the same requests, in slots of the engine's own.

The world's scheduler says who owns what; the engine's own allocator and request table then
give and take. Between both lies a bijection of slots, through which all KV can be read in the
world's layout and slot numbers, and written.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reference.allocator import Numbers, Owner, Ownership
from reference.batch import ForwardBatch
from reference.config import Kind
from reference.pool import KVPools
from subjects.engines.sglang.memory.pool import SglangPool
from subjects.engines.sglang.memory.slots import inverse, pair_slots


@dataclass
class Held:
    """What the engine holds for a request: its row, its tokens, and how many lost their SWA KV."""

    row: int
    tokens: int = 0
    evicted: int = 0


class Mirror:
    """The engine's side of a world's requests. `owners` returns the running ones."""

    def __init__(
        self, pool: SglangPool, pools: KVPools, owners: Callable[[], Sequence[Owner]]
    ) -> None:
        self.pool = pool
        self.pools = pools
        self.owners = owners
        self.held: dict[int, Held] = {}
        self._freed = False
        self._pair_slots(())

    def reset(self) -> None:
        """Hold nothing."""
        self.pool.clear()
        self.held.clear()
        self._freed = False
        self._pair_slots(())
        self.write_kv()

    def place(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Give a batch's requests rows and slots; return both, int64 [B] and [T].

        A batch that has its slots keeps them.
        """
        owners, moved = self.owners(), self._freed
        self._freed = False
        serials = {owner.row: owner.serial for owner in owners}
        for span in batch.spans:
            if serials[span.row] not in self.held:
                self.held[serials[span.row]] = Held(self.pool.take_row())
        placed = [(self.held[serials[span.row]], span) for span in batch.spans]
        grown = [(held, span.end) for held, span in placed if held.tokens < span.end]
        if grown:
            self.pool.extend(
                [held.row for held, _ in grown],
                [held.tokens for held, _ in grown],
                [end for _, end in grown],
            )
        for held, end in grown:
            held.tokens = end
        if grown or moved:
            self._pair_slots(owners)
            self.write_kv()
        rows = torch.tensor([held.row for held, _ in placed], device=batch.positions.device)
        locs = [self.pool.held(held.row, span.begin, span.end) for held, span in placed]
        return rows, torch.cat(locs)

    def ownership(self) -> Ownership:
        """Return who holds which pages and rows, as the engine's allocator and tables have it.

        A request holds the pages that its row of the request table names, and of the SWA
        sub-pool those that they map to, but for what left its window. State slots are the
        world's: the engine manages none here.
        """
        pool, size = self.pool, self.pool.sizes.page_size
        states = {owner.serial: owner.state_slot for owner in self.owners()}
        holders = []
        for serial, held in self.held.items():
            slots = pool.held(held.row, 0, held.tokens)[::size]
            full = [slot // size for slot in slots.tolist()]
            swa = [slot // size for slot in pool.mapping[slots].tolist()]
            kept = range(held.evicted // size, len(full))
            pages = tuple(swa[place] if place in kept else None for place in range(len(full)))
            state = states.get(serial, 0)
            holders.append(Owner(serial, held.row, state, held.tokens, size, tuple(full), pages))
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

    def follow(self) -> None:
        """Free what the world has freed since: requests, what left windows, rejected drafts.

        The KV of accepted drafts has then been moved up, and of what is behind it the pages
        that hold none of it are freed. So does the engine's own verify of trees in pages; without
        pages it frees the slots of rejected drafts wherever they lie, and later releases keep
        both for the drafts to come. Which slots those are is therefore ours, freeing them its.
        """
        if not self.held:
            return
        running = {owner.serial: owner for owner in self.owners()}
        for serial, held in list(self.held.items()):
            owner = running.get(serial)
            if owner is None:
                del self.held[serial]
                self.pool.free(held.row, held.tokens, held.evicted)
                self.pool.give_row(held.row)
                self._freed = True
                continue
            kept = len(owner.full_pages) * self.pool.sizes.page_size
            if held.tokens > kept:
                self.pool.shrink(held.row, kept, held.tokens)
                held.tokens = kept
                self._freed = True
            evicted = min(self._evicted(owner), held.tokens)
            if evicted > held.evicted:
                self.pool.evict(held.row, held.evicted, evicted)
                held.evicted = evicted
                self._freed = True

    def write_kv(self) -> None:
        """Give every slot of the engine the bytes of its counterpart in the world's storage."""
        for plane, buffer, places in self._planes():
            buffer[places] = plane

    def read_kv(self) -> None:
        """Give every slot of the world's storage the bytes of its counterpart in the engine."""
        for plane, buffer, places in self._planes():
            plane.copy_(buffer[places])

    def _planes(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield K or V of each layer of each model: the world's, the engine's, their bijection."""
        for role, config in self.pool.configs.items():
            for layer, kind in enumerate(config.layers):
                cache, held = self.pools[role].cache(layer), self.pool.keys_and_values(role, layer)
                for plane, buffer in zip(cache, held, strict=True):
                    yield plane, buffer, self._places[kind]

    def ours(self, kind: Kind, slots: Collection[int]) -> list[int]:
        """Return the world's slots of some of the engine's, -1 for what is no slot."""
        known = self._ours[kind]
        return [known[slot] if 0 <= slot < len(known) else -1 for slot in slots]

    def _evicted(self, owner: Owner) -> int:
        """Return how many of a request's first tokens have no SWA slot any more."""
        pages = owner.swa_pages
        kept = next((index for index, page in enumerate(pages) if page is not None), len(pages))
        return kept * self.pool.sizes.page_size

    def _pair_slots(self, owners: Sequence[Owner]) -> None:
        """Pair our slots with the engine's: by request and position, and what is free in order."""
        sizes, size = self.pool.sizes, self.pool.sizes.page_size
        ours: dict[Kind, list[int]] = {Kind.FULL: [], Kind.SWA: []}
        theirs: dict[Kind, list[Tensor]] = {Kind.FULL: [], Kind.SWA: []}
        for owner in owners:
            held = self.held.get(owner.serial)
            if held is None:
                continue
            for kind, pages, first in (
                (Kind.FULL, owner.full_pages, 0),
                (Kind.SWA, owner.swa_pages, held.evicted),
            ):
                for token in range(first, held.tokens):
                    page = pages[token // size]
                    assert page is not None
                    ours[kind].append(page * size + token % size)
                theirs[kind].append(self.pool.held(held.row, first, held.tokens))
        nothing = torch.zeros(0, dtype=torch.int64, device=self.pool.device)
        self._places, self._ours = {}, {}
        for kind in Kind:
            found = torch.cat([nothing, *theirs[kind]])
            if kind is Kind.SWA and len(found):
                found = self.pool.translate(found)
            apart = self.pool.apart(kind)
            paired = pair_slots(sizes.slots(kind), size, ours[kind], found.tolist(), apart)
            self._places[kind] = torch.tensor(paired, device=self.pool.device)
            self._ours[kind] = inverse(paired)
