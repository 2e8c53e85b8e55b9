"""The hybrid KV pool: a full and a smaller SWA sub-pool in one arena, and the map between them.

Knows storage and the full-to-SWA mapping. Does not know who owns a slot (the
allocator does) nor how a write location is found (each world does, its own way).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from reference.config import Kind, ModelConfig

LOC_DTYPE = {Kind.FULL: torch.int64, Kind.SWA: torch.int32}
"""The store ABI: how the store op reads the write locations of each sub-pool."""


@dataclass(frozen=True)
class PoolSizes:
    """Usable slots of each sub-pool, slots per page, request rows. Both sizes divide by the page.

    Slots 0 .. page_size-1 (page 0) come on top and are never allocated; so does row 0.
    """

    full_slots: int = 80
    swa_slots: int = 72
    page_size: int = 1
    rows: int = 16

    def slots(self, kind: Kind) -> int:
        """Return all slots of a sub-pool, the reserved page included."""
        return (self.full_slots if kind is Kind.FULL else self.swa_slots) + self.page_size


class HybridKVPool:
    """K and V of all layers in one allocation, with a view per sub-pool.

    `storage` is flat, in the model's dtype. `arena[kind]` is its view
    [layers of that kind, 2 (K, V), slots, kv_heads, head_dim].
    `full_to_swa_index_mapping` (int64, full size + page size + 1) maps a full slot
    to its SWA slot: 0 where unmapped, and its last element is -1 so that -1 maps
    to -1. `req_to_token` (int32 [rows + 1, max_context]) maps a request's row and
    position to its full slot; row 0 is reserved and all zeros.
    """

    def __init__(
        self, config: ModelConfig, sizes: PoolSizes, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.sizes = sizes
        self._shapes = {
            kind: torch.Size(
                (
                    len(config.layers_of(kind)),
                    2,
                    sizes.slots(kind),
                    config.shape(kind).kv_heads,
                    config.shape(kind).head_dim,
                )
            )
            for kind in Kind
        }
        total = sum(shape.numel() for shape in self._shapes.values())
        self.storage = torch.zeros(total, dtype=dtype, device=device)
        self.arena = self.arenas_of(self.storage)
        self.full_to_swa_index_mapping = torch.zeros(
            sizes.full_slots + sizes.page_size + 1, dtype=torch.int64, device=device
        )
        self.req_to_token = torch.zeros(
            (sizes.rows + 1, config.max_context), dtype=torch.int32, device=device
        )
        self._place = [
            (kind, config.layers_of(kind).index(index)) for index, kind in enumerate(config.layers)
        ]
        self.reset(seed=0)

    def reset(self, seed: int) -> None:
        """Fill the storage with finite garbage drawn from `seed`, and forget every index.

        Garbage rather than zeros: a read of a slot nobody wrote must show.
        """
        generator = torch.Generator().manual_seed(seed)
        self.storage.copy_(torch.randn(self.storage.shape, generator=generator))
        self.full_to_swa_index_mapping.zero_()
        self.full_to_swa_index_mapping[-1] = -1
        self.req_to_token.zero_()

    def arenas_of(self, flat: Tensor) -> dict[Kind, Tensor]:
        """Return the per-sub-pool views of a tensor that has the storage's layout."""
        parts = flat.split([shape.numel() for shape in self._shapes.values()])
        views = [part.view(shape) for part, shape in zip(parts, self._shapes.values(), strict=True)]
        return dict(zip(self._shapes, views, strict=True))

    def cache(self, layer: int) -> Tensor:
        """Return K and V of one layer, [2, slots, kv_heads, head_dim]."""
        kind, place = self._place[layer]
        return self.arena[kind][place]

    @property
    def device(self) -> torch.device:
        """The device the pool lives on."""
        return self.storage.device
