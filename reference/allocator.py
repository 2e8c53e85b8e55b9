"""Allocates pages of both sub-pools, rows and state slots, in a shuffled order.

The bookkeeping is on the host and deterministic. A freed page or row is the first to be allocated
again, because a stale slot does harm only once it has a new owner, and a freed state slot is the
second.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from paritybit.reference.config import Kind
from paritybit.reference.order import Arrived, InOrder
from paritybit.reference.pool import HybridKVPool, PoolSizes
from torch import Tensor


@dataclass
class PageAllocation:
    """What one request owns: a row, a state slot, and a full and a SWA page per page of tokens.

    A SWA page is None once it left the window.
    """

    row: int
    state_slot: int
    full_pages: list[int] = field(default_factory=list)
    swa_pages: list[int | None] = field(default_factory=list)


class PageAllocator:
    """Allocates slots of one pool.

    `on_change` is called whenever a slot may change its owner. `order` runs the writes to the
    mapping, and is notified before anything is freed.
    """

    def __init__(
        self,
        pool: HybridKVPool,
        on_change: Callable[[], None] = lambda: None,
        order: InOrder | None = None,
    ) -> None:
        self.pool = pool
        self.page_size = pool.sizes.page_size
        self.on_change = on_change
        self.order = order or InOrder(pool.device)
        self.clear(seed=0)

    def clear(self, seed: int) -> None:
        """Free everything, and shuffle the free pages, rows and state slots by `seed`."""
        every = Numbers.of(self.pool.sizes)
        shuffle = random.Random(seed)
        self.free_full, self.free_swa = list(every.full_pages), list(every.swa_pages)
        self.free_rows, self.free_states = list(every.rows), list(every.states)
        for free in (self.free_full, self.free_swa, self.free_rows, self.free_states):
            shuffle.shuffle(free)
        self.on_change()

    def alloc_row(self) -> PageAllocation | None:
        """Return an allocation with a row, a state slot and no page, or None if no row is free."""
        if not self.free_rows:
            return None
        return PageAllocation(self.free_rows.pop(), self.free_states.pop())

    def extend(self, allocation: PageAllocation, length: int, count: int) -> bool:
        """Allocate slots for `count` tokens after the first `length`.

        Returns False, and changes nothing, if either sub-pool has too few pages.
        """
        pages = -(-(length + count) // self.page_size) - len(allocation.full_pages)
        if pages > min(len(self.free_full), len(self.free_swa)):
            return False
        for _ in range(pages):
            allocation.full_pages.append(self.free_full.pop())
            allocation.swa_pages.append(self.free_swa.pop())
        self.on_change()
        return True

    def full_slots(self, allocation: PageAllocation, begin: int, end: int) -> list[int]:
        """Return the full slots of the tokens begin .. end-1."""
        size, pages = self.page_size, allocation.full_pages
        if size == 1:
            return pages[begin:end]
        return [pages[token // size] * size + token % size for token in range(begin, end)]

    def swa_slots(self, allocation: PageAllocation, begin: int, end: int) -> list[int]:
        """Return the SWA slots of the tokens begin .. end-1, whose pages are in the window."""
        size = self.page_size
        pages = {index: page for index, page in enumerate(allocation.swa_pages) if page is not None}
        return [pages[token // size] * size + token % size for token in range(begin, end)]

    def evict(self, allocation: PageAllocation, tokens: int) -> None:
        """Free the SWA pages that contain only the first `tokens` tokens."""
        pages = [
            index
            for index, page in enumerate(allocation.swa_pages[: tokens // self.page_size])
            if page is not None
        ]
        if pages:
            self.order.evicting()
        self._free_swa(allocation, pages)

    def truncate(self, allocation: PageAllocation, tokens: int) -> None:
        """Free the pages that contain none of the first `tokens` tokens, last page first."""
        self.order.freeing()
        kept = -(-tokens // self.page_size)
        gone = range(kept, len(allocation.full_pages))
        self._free_swa(allocation, [i for i in gone if allocation.swa_pages[i] is not None])
        self.free_full += reversed(allocation.full_pages[kept:])
        del allocation.full_pages[kept:], allocation.swa_pages[kept:]
        self.on_change()

    def free(self, allocation: PageAllocation) -> None:
        """Free the row, the state slot and all pages of `allocation`."""
        self.truncate(allocation, 0)
        self.free_rows.append(allocation.row)
        # Not last: otherwise rows keep their state slots, and a table by row is never stale.
        self.free_states.insert(-1, allocation.state_slot)

    def _free_swa(self, allocation: PageAllocation, pages: Sequence[int]) -> None:
        """Give back the SWA pages of `allocation` at some indices, and unmap their full slots."""
        for index in reversed(pages):
            page = allocation.swa_pages[index]
            assert page is not None
            self.free_swa.append(page)
            allocation.swa_pages[index] = None
        if pages:
            size = self.page_size
            firsts = [allocation.full_pages[index] * size for index in pages]
            unmapped = [first + offset for first in firsts for offset in range(size)]
            self.order.write({"slot": unmapped}, self._unmap)
        self.on_change()

    def _unmap(self, arrived: Arrived) -> None:
        # Assigning a number would copy it to the device, and the host would wait.
        self.pool.full_to_swa_index_mapping.index_fill_(0, arrived["slot"], 0)


@dataclass(frozen=True)
class Numbers:
    """The pages, rows, state slots and token rows that requests may hold. None is reserved."""

    full_pages: tuple[int, ...]
    swa_pages: tuple[int, ...]
    rows: tuple[int, ...]
    states: tuple[int, ...]
    token_rows: tuple[int, ...]

    @classmethod
    @cache
    def of(cls, sizes: PoolSizes) -> "Numbers":
        """Return the numbers for pools of some sizes: all but 0."""
        rows = tuple(range(1, sizes.rows + 1))
        full, swa = (
            tuple(range(1, 1 + slots // sizes.page_size))
            for slots in (sizes.full_slots, sizes.swa_slots)
        )
        return cls(full, swa, rows, rows, tuple(range(2 * sizes.rows)))


NEVER_SEEN = 2**31
"""A column beyond those of any request."""


class Owner(NamedTuple):
    """A running request, with the pages and the state slot that it owned during a forward.

    - `length`: number of tokens whose KV is in the pool. A SWA page that left the window is None.
    - `seen_from`: the first column that the next query can see on SWA layers.
    - `known`: number of tokens whose value is known, in row `token_row` of the table of tokens.
    """

    serial: int
    row: int
    state_slot: int
    length: int
    page_size: int
    full_pages: tuple[int, ...]
    swa_pages: tuple[int | None, ...]
    seen_from: int = NEVER_SEEN
    token_row: int = 0
    known: int = 0

    def slots(self, kind: Kind) -> list[int]:
        """Return the slots of one sub-pool that hold a token of this request."""
        pages = self.full_pages if kind is Kind.FULL else self.swa_pages
        return [
            page * self.page_size + offset
            for place, page in enumerate(pages)
            if page is not None
            for offset in range(min(self.page_size, self.length - place * self.page_size))
        ]


@dataclass(frozen=True)
class Ownership:
    """Which pages and rows of one run are held, and which are free, after a step.

    `holders` are the running requests. `all` are the pages and rows that requests may hold.
    `retracted` are the other requests with tokens, each with its token row. The tables, and
    `tokens` int64 [token rows, max_context], are valid until the next step.
    """

    holders: tuple[Owner, ...]
    all: Numbers
    free_full: tuple[int, ...]
    free_swa: tuple[int, ...]
    free_rows: tuple[int, ...]
    free_states: tuple[int, ...]
    mapping: Tensor
    req_to_token: Tensor
    tokens: Tensor
    free_token_rows: tuple[int, ...]
    retracted: tuple[tuple[int, int], ...] = ()
