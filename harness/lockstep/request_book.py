"""The requests of one run with their rows, slots and tokens, and the batches made of them."""

from collections.abc import Callable, Iterable, Sequence

import torch
from paritybit.harness.lockstep.requests import PlannedForward, ScheduledRequest
from paritybit.reference.allocator import Numbers, Owner, Ownership, PageAllocation, PageAllocator
from paritybit.reference.batch import ForwardBatch, Mode, RequestSpan, prepare
from paritybit.reference.config import Role
from paritybit.reference.order import InOrder
from paritybit.reference.pool import KVPools


class RequestBook:
    """The requests of one run, their pages and their tokens.

    - `max_bs`: the largest number of requests in a batch.
    - `modes`: the modes for which the engine has runners.
    - `on_change`: called after anything that may change the owner of a slot.
    - `allocator`: the class that hands out slots.
    - `order`: runs the device work of the host's decisions.
    """

    def __init__(
        self,
        pools: KVPools,
        max_bs: int,
        modes: frozenset[Mode],
        on_change: Callable[[], None] = lambda: None,
        allocator: type[PageAllocator] = PageAllocator,
        *,
        order: InOrder | None = None,
    ) -> None:
        self.config = config = pools[Role.TARGET].config
        self.pools = pools
        self.max_bs = max_bs
        self.modes = modes
        self.draft_mode = next((mode for mode in Mode if mode.drafts and mode in modes), None)
        self.order = order or InOrder(pools.storage.device)
        self.allocator = allocator(pools[Role.TARGET], on_change, self.order)
        device, dtype = pools.storage.device, pools.storage.dtype
        self.token_rows = 2 * pools.sizes.rows
        shape = self.token_rows, config.max_context
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.hidden_states = torch.zeros((*shape, config.hidden), dtype=dtype, device=device)
        self.reset(seed=0)

    def reset(self, seed: int) -> None:
        """Remove all requests. `seed` determines the pool's bytes and the order of free slots."""
        self.seed = seed
        self.pools.reset(seed)
        self.allocator.clear(seed)
        self.tokens.zero_()
        self.hidden_states.zero_()
        self.running: list[ScheduledRequest] = []
        self.retracted: list[ScheduledRequest] = []
        self.free_token_rows = list(range(self.token_rows))
        self.admitted = 0

    def batch_of(self, mode: Mode, spans: Sequence[RequestSpan]) -> ForwardBatch:
        """Write the slots of some spans to the tables, and return the batch."""
        return prepare(mode, spans, self.tokens, self.hidden_states, self.pools.tables)

    def complete_batch(self, work: PlannedForward) -> ForwardBatch | None:
        """Return the batch of a planned forward. None if it is idle."""
        return work.batch

    def owners(self) -> tuple[Owner, ...]:
        """Return the owners of pages in the order in which the requests were admitted."""
        return tuple(
            self.owner(request) for request in self.running if request.allocation is not None
        )

    def owner(self, request: ScheduledRequest) -> Owner:
        """Return the owner for a request with an allocation."""
        held = request.allocation
        assert held is not None
        return Owner(
            request.serial,
            held.row,
            held.state_slot,
            request.length,
            self.pools.sizes.page_size,
            tuple(held.full_pages),
            tuple(held.swa_pages),
            self.seen_from(request),
            request.token_row,
            request.known,
        )

    def seen_from(self, request: ScheduledRequest) -> int:
        """Return the first column that a future query of a request can see on SWA layers.

        The request's next query is at its length, that of the draft model at `drafted`. A query
        of a frozen-KV draft is one column before. This is independent of `evict`, on purpose.
        """
        stands = request.drafted if 0 < request.drafted < request.length else request.length
        if Mode.FROZEN_DRAFT in self.modes:
            stands -= 1
        return max(stands + 1 - self.config.window, 0)

    def ownership(self) -> Ownership:
        """Return the owners of slots and rows, and which are free."""
        free, tables = self.allocator, self.pools.tables
        return Ownership(
            holders=self.owners(),
            all=Numbers.of(self.pools.sizes),
            free_full=tuple(free.free_full),
            free_swa=tuple(free.free_swa),
            free_rows=tuple(free.free_rows),
            free_states=tuple(free.free_states),
            mapping=tables.full_to_swa_index_mapping,
            req_to_token=tables.req_to_token,
            tokens=self.tokens,
            free_token_rows=tuple(self.free_token_rows),
            retracted=tuple((request.serial, request.token_row) for request in self.retracted),
        )

    def request_of(self, row: int) -> ScheduledRequest:
        """Return the running request at `row` of req_to_token."""
        return next(
            request
            for request in self.running
            if request.allocation and request.allocation.row == row
        )

    def ready(self, able: Callable[[ScheduledRequest], bool]) -> list[ScheduledRequest]:
        """Return the fully prefilled requests that satisfy `able`."""
        return [request for request in self.running if not request.prefilling and able(request)]

    def choose(
        self, ready: Sequence[ScheduledRequest], picks: Sequence[int]
    ) -> list[ScheduledRequest]:
        """Return the picked requests without duplicates, as many as fit in a batch."""
        chosen = dict.fromkeys(pick % len(ready) for pick in picks) if ready else {}
        return [ready[place] for place in chosen][: self.max_bs]

    def planned(self, mode: Mode, spans: Iterable[RequestSpan | None]) -> PlannedForward | None:
        """Return the forward over the spans that are not None, or None if there are none."""
        found = [span for span in spans if span is not None]
        return self.forward_of(mode, found) if found else None

    def forward_of(self, mode: Mode, spans: Sequence[RequestSpan]) -> PlannedForward:
        """Write the slots of some spans to the tables, and return the forward over them."""
        return PlannedForward(mode, self.batch_of(mode, spans), tuple(spans))

    def span(self, request: ScheduledRequest, count: int) -> RequestSpan | None:
        """Return the next `count` tokens of `request` as a span, or None without free slots."""
        begin, end = request.length, request.length + count
        if request.allocation is None or not self.make_room(request.allocation, begin, count):
            return None
        return self.allocated_span(request, begin, end)

    def allocated_span(self, request: ScheduledRequest, begin: int, end: int) -> RequestSpan:
        """Return tokens begin to end - 1 of `request` as a span. They must have slots."""
        allocation = request.allocation
        assert allocation is not None
        return RequestSpan(
            row=allocation.row,
            token_row=request.token_row,
            begin=begin,
            end=end,
            full_slots=self.allocator.full_slots(allocation, begin, end),
            swa_slots=self.allocator.swa_slots(allocation, begin, end),
            track_index=allocation.state_slot,
        )

    def make_room(self, allocation: PageAllocation, length: int, count: int) -> bool:
        """Give `allocation` slots for `count` more tokens. Returns whether there were enough.

        If there are not enough, pages that left the windows of running requests are evicted first.
        """
        if self.allocator.extend(allocation, length, count):
            return True
        for request in self.running:
            self.evict(request)
        return self.allocator.extend(allocation, length, count)

    def advance(self, request: ScheduledRequest, length: int) -> None:
        """Advance `request` to `length` cached tokens; discard drafts made for a shorter prefix."""
        request.length = length
        request.state, request.drafts = None, ()

    def free_unused(self, request: ScheduledRequest) -> None:
        """Free the pages of `request` that hold none of its tokens."""
        if request.allocation is not None:
            self.allocator.truncate(request.allocation, request.length)

    def evict(self, request: ScheduledRequest) -> None:
        """Free the SWA pages that no future query of target or draft model can see."""
        if request.allocation is not None:
            needed = min(request.length, request.drafted or request.length)
            # A frozen-KV draft queries at the target's last write, one before the next query.
            needed -= Mode.FROZEN_DRAFT in self.modes
            unseen = max(0, needed - self.config.window + 1)
            self.allocator.evict(request.allocation, unseen)
