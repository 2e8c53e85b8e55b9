"""Noise where nobody in the batch owns a byte: any float bits, indices over valid values.

Padded rows execute, so index-typed bytes stay valid: an embedding id out of range
would be a device assert, not a finding.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from harness.world import World
from reference.batch import ENCODER_ROWS, TRACK_ROWS, ForwardBatch
from reference.config import Kind, ModelConfig
from reference.pool import HybridKVPool, PoolSizes


def index_bounds(config: ModelConfig, sizes: PoolSizes) -> Mapping[str, int]:
    """Return, per static buffer that noise may fill, the first value that is not valid."""
    return {
        "input_ids": config.vocab,
        "positions": config.max_context,
        "mrope_positions": config.max_context,
        "req_pool_indices": sizes.rows + 1,
        "seq_lens": config.window,
        "seq_lens_cpu": config.window,
        "out_cache_loc": sizes.slots(Kind.FULL),
        "out_cache_loc_swa": sizes.slots(Kind.SWA),
        "mamba_track_indices": TRACK_ROWS,
        "mamba_track_mask": 2,
        "encoder_lens": ENCODER_ROWS,
        "kv_indices": sizes.slots(Kind.FULL),
        "window_kv_indices": sizes.slots(Kind.SWA),
    }


class Noise:
    """Noise for one pool and its static buffers, the same for the same seed."""

    def __init__(self, config: ModelConfig, pool: HybridKVPool) -> None:
        self.pool = pool
        self.bounds = index_bounds(config, pool.sizes)
        self.generator = torch.Generator()

    def owned(self, world: World, batch: ForwardBatch | None) -> Tensor:
        """Return a bool tensor of the storage's layout: true where a request of `batch` owns."""
        mask = torch.zeros(self.pool.storage.shape, dtype=torch.bool, device=self.pool.device)
        arenas = self.pool.arenas_of(mask)
        for span in batch.spans if batch is not None else ():
            request = world.request_of(span.row)
            full, swa = world.owned(request)
            arenas[Kind.FULL][:, :, [*full, *span.full_slots]] = True
            arenas[Kind.SWA][:, :, [*swa, *span.swa_slots]] = True
        return mask

    def fill_buffers(self, buffers: Mapping[str, Tensor], seed: int) -> None:
        """Fill every static buffer that has bounds with valid values drawn from `seed`."""
        self.generator.manual_seed(seed)
        for name, bound in self.bounds.items():
            if name in buffers:
                drawn = self._draw(bound, buffers[name].shape)
                buffers[name].copy_(drawn)

    def fill_pool(self, world: World, owned: Tensor, seed: int) -> None:
        """Fill unowned storage with any bits, NaN too, and unused index cells with valid slots."""
        self.generator.manual_seed(seed)
        storage = self.pool.storage
        noise = torch.randint(-(2**31), 2**31, (-(-storage.nbytes // 4),), generator=self.generator)
        any_bits = noise.to(torch.int32).view(storage.dtype)[: storage.numel()].to(storage.device)
        storage.copy_(torch.where(owned, storage, any_bits))
        used_rows, used_slots = torch.zeros_like(self.pool.req_to_token, dtype=torch.bool), set()
        used_rows[0] = True
        for request in world.running:
            if request.holding is not None:
                held = len(request.holding.full_pages) * self.pool.sizes.page_size
                used_rows[request.holding.row, :held] = True
                used_slots.update(world.allocator.full_slots(request.holding, 0, held))
        self._fill_unused(self.pool.req_to_token, used_rows, Kind.FULL)
        mapping = self.pool.full_to_swa_index_mapping
        used = torch.zeros_like(mapping, dtype=torch.bool)
        used[: self.pool.sizes.page_size] = True  # Padding writes through slot 0.
        used[-1] = True
        used[list(used_slots)] = True
        self._fill_unused(mapping, used, Kind.SWA)

    def _fill_unused(self, table: Tensor, used: Tensor, kind: Kind) -> None:
        drawn = self._draw(self.pool.sizes.slots(kind), table.shape).to(table)
        table.copy_(torch.where(used, table, drawn))

    def _draw(self, bound: int, shape: torch.Size) -> Tensor:
        return torch.randint(bound, shape, generator=self.generator)
