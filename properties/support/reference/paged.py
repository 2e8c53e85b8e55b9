"""The eager path over a paged pool, a forward at a time, of requests that bring tokens alone."""

from collections.abc import Sequence

import torch
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.reference.allocator import Allocator, PageAllocation
from paritybit.reference.batch import Mode, Span, prepare
from paritybit.reference.config import Kind, Role, draft_config
from paritybit.reference.eager import EagerDecoder
from paritybit.reference.model import Model
from paritybit.reference.pool import KVPools, PoolSizes
from torch import Tensor


class PagedRequests:
    """Requests of `tokens` (int64 [requests, max_context]) on pools of a page size.

    What left a window is freed before every forward, and what nobody owns is NaN.
    """

    def __init__(self, model: Model, draft: Model, tokens: Tensor, page_size: int) -> None:
        config, device = model.config, model.device
        sizes = PoolSizes(96, 96, page_size, len(tokens))
        self.model, self.tokens = model, tokens.to(device)
        self.pools = KVPools(config, draft_config(config), sizes, model.dtype, device)
        self.pools.reset(0)
        self.allocator = Allocator(self.pools[Role.TARGET])
        ops = TrialConfig(device=device.type).ops()
        self.decoder = EagerDecoder(ops, model, draft, self.pools)
        self.hidden_states = torch.zeros(*tokens.shape, config.hidden, device=device)
        rows = [self.allocator.alloc_row() for _ in tokens]
        self.allocations = [row for row in rows if row is not None]
        self.lengths = [0] * len(tokens)
        self.evicted = 0

    def run(self, mode: Mode, count: int) -> Tensor:
        """Run the next `count` tokens of every request; return logits after the last of each."""
        for allocation, length in zip(self.allocations, self.lengths, strict=True):
            unseen = max(0, length - self.model.config.window + 1)
            self.evicted += self.allocator.evict(allocation, unseen)
            assert self.allocator.extend(allocation, length, count) is not None
        self._fill_unowned()
        spans = [self._span(request, count) for request in range(len(self.tokens))]
        batch = prepare(mode, spans, self.tokens, self.hidden_states, self.pools.tables)
        logits = self.decoder.forward(batch)["logits"]
        self.lengths = [length + count for length in self.lengths]
        return logits.cpu()

    def _span(self, request: int, count: int) -> Span:
        allocation, begin = self.allocations[request], self.lengths[request]
        end = begin + count
        return Span(
            row=allocation.row,
            token_row=request,
            begin=begin,
            end=end,
            full_slots=self.allocator.full_slots(allocation, begin, end),
            swa_slots=self.allocator.swa_slots(allocation, begin, end),
            mrope_delta=0,
            track_index=0,
            tracked=False,
            encoder_len=0,
        )

    def _fill_unowned(self) -> None:
        """Fill every slot of which no cached token is the owner with NaN, slot 0 too."""
        for _, kind, arena in self.pools.arenas_of(self.pools.storage):
            unowned = torch.ones(arena.shape[2], dtype=torch.bool)
            for allocation, length in zip(self.allocations, self.lengths, strict=True):
                unowned[self._owned(kind, allocation, length)] = False
            arena[:, :, unowned.to(arena.device)] = torch.nan

    def _owned(self, kind: Kind, allocation: PageAllocation, length: int) -> Sequence[int]:
        if kind is Kind.FULL:
            return self.allocator.full_slots(allocation, 0, length)
        size = self.pools.sizes.page_size
        first = sum(page is None for page in allocation.swa_pages) * size
        return self.allocator.swa_slots(allocation, min(first, length), length)
