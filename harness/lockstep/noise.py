"""Noise for all bytes that no request in the batch owns.

Half of the KV that nobody may read becomes NaN. Indices get valid values, because padded rows
execute too: an embedding id out of range would be a device assert and not a finding.
"""

import math
from collections.abc import Mapping

import torch
from paritybit.harness.lockstep.request_book import RequestBook
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import DRAFT_TOKENS, Kind, Role
from paritybit.reference.pool import KVPools
from torch import Tensor

COUNTS = frozenset(
    {"num_correct_drafts", "num_accept_tokens", "extend_seq_lens", "extend_seq_lens_cpu"}
)
"""Static buffers of token counts. A request has at least one token."""


class Noise:
    """Noise for one pool and its static buffers. Equal seeds give equal noise.

    `bounds` has the exclusive upper bound of valid values, per static buffer of indices.
    """

    def __init__(self, pools: KVPools, seed: int) -> None:
        self.pools = pools
        config, sizes = pools[Role.TARGET].config, pools.sizes
        self.bounds = {
            "input_ids": config.vocab,
            "topk_index": config.vocab,
            "positions": config.max_context,
            "req_pool_indices": sizes.rows + 1,
            "seq_lens": config.window,
            "seq_lens_cpu": config.window,
            "out_cache_loc": sizes.slots(Kind.FULL),
            "out_cache_loc_swa": sizes.slots(Kind.SWA),
            "mamba_track_indices": sizes.rows + 1,
            "kv_indices": sizes.slots(Kind.FULL),
            "window_kv_indices": sizes.slots(Kind.SWA),
        }
        self.generator = torch.Generator().manual_seed(seed)

    def owned(self, book: RequestBook, batch: ForwardBatch | None) -> Tensor:
        """Return a mask in the storage's layout: true if a request of `batch` owns the element."""
        storage = self.pools.storage
        mask = torch.zeros(storage.shape, dtype=torch.bool, device=storage.device)
        slots: dict[Kind, list[int]] = {Kind.FULL: [], Kind.SWA: []}
        spans = batch.spans if batch is not None else ()
        for span in spans:
            owner = book.owner(book.request_of(span.row))
            slots[Kind.FULL] += [*owner.slots(Kind.FULL), *span.full_slots]
            slots[Kind.SWA] += [*owner.slots(Kind.SWA), *span.swa_slots]
        for _, kind, arena in self.pools.layout.arenas_of(mask):
            arena[:, :, slots[kind]] = True
        # An engine without recurrent states only has the reserved slot.
        states = [span.track_index for span in spans if span.track_index]
        self.pools.layout.states_of(mask)[states] = True
        return mask

    def fill_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Fill all buffers: floats with finite values, indices with random valid values."""
        for name, buffer in buffers.items():
            if buffer.dtype.is_floating_point:
                buffer.copy_(torch.randn(buffer.shape, generator=self.generator))
            elif name in COUNTS:
                buffer.copy_(1 + self._draw(DRAFT_TOKENS, buffer.shape))
            elif name in self.bounds:
                buffer.copy_(self._draw(self.bounds[name], buffer.shape))

    def fill_pool(self, book: RequestBook, owned: Tensor) -> None:
        """Fill unowned storage with NaN and random bits, and reserved pages with finite values.

        Padded rows write to the reserved page and read it. Unused cells of the index tables get
        valid slots.
        """
        storage, page = self.pools.storage, self.pools.sizes.page_size
        storage.copy_(torch.where(owned, storage, self._any_bits(storage)))
        reserved = [arena[:, :, :page] for _, _, arena in self.pools.layout.arenas_of(storage)]
        reserved.append(self.pools.layout.states_of(storage)[0])
        for part in reserved:
            part.copy_(torch.randn(part.shape, generator=self.generator))
        self._fill_tables(book)

    def _fill_tables(self, book: RequestBook) -> None:
        tables = self.pools.tables
        used_rows, used_slots = torch.zeros_like(tables.req_to_token, dtype=torch.bool), set()
        used_rows[0] = True
        for request in book.running:
            if request.allocation is not None:
                count = len(request.allocation.full_pages) * self.pools.sizes.page_size
                used_rows[request.allocation.row, :count] = True
                used_slots.update(book.allocator.full_slots(request.allocation, 0, count))
        self._fill_unused(tables.req_to_token, used_rows, Kind.FULL)
        mapping = tables.full_to_swa_index_mapping
        used = torch.zeros_like(mapping, dtype=torch.bool)
        used[: self.pools.sizes.page_size] = True  # Padding writes through slot 0.
        used[-1] = True
        used[list(used_slots)] = True
        self._fill_unused(mapping, used, Kind.SWA)

    def _fill_unused(self, table: Tensor, used: Tensor, kind: Kind) -> None:
        drawn = self._draw(self.pools.sizes.slots(kind), table.shape)
        table.copy_(torch.where(used, table, drawn.to(table)))

    def _any_bits(self, like: Tensor) -> Tensor:
        """Return NaN and random bits in turn, as a flat tensor with the size of `like`."""
        integers = torch.empty(-(-like.nbytes // 8), dtype=torch.int64)
        noise = integers.random_(-(2**63), None, generator=self.generator)
        values = noise.view(like.dtype)[: like.numel()]
        values[::2] = math.nan
        return values.to(like.device)

    def _draw(self, bound: int, shape: torch.Size) -> Tensor:
        return torch.randint(bound, shape, generator=self.generator)
