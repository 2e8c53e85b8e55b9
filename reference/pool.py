"""The hybrid KV pools, the map between their sub-pools, and the recurrent states.

Contains the storage and the full-to-SWA mapping. The allocator knows who owns a slot, and each run
finds its write locations by itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from paritybit.reference.config import DRAFT_TOKENS, Kind, ModelConfig, Role
from torch import Tensor

LOC_DTYPE = {Kind.FULL: torch.int64, Kind.SWA: torch.int32}
"""The store ABI: the dtype of the write locations of each sub-pool."""

STATE_ROWS = 1 + DRAFT_TOKENS
"""Rows per state slot: the request's state, then that after each token to verify."""


@dataclass(frozen=True)
class PoolSizes:
    """Usable slots of each sub-pool, slots per page, and request rows. Pages divide both sizes.

    Slots 0 .. page_size-1 (page 0) and row 0 are extra and never allocated.
    """

    full_slots: int = 80
    swa_slots: int = 72
    page_size: int = 1
    rows: int = 16

    def slots(self, kind: Kind) -> int:
        """Return how many slots a sub-pool has, including the reserved page."""
        return (self.full_slots if kind is Kind.FULL else self.swa_slots) + self.page_size


class Tables:
    """The index tables of a pool.

    `full_to_swa_index_mapping` (int64, one more than full slot numbers) maps a full slot to its SWA
    slot, or to 0 if unmapped. Its last element is -1, so that -1 maps to -1. `req_to_token` (int32
    [rows + 1, max_context]) maps a request's row and position to its full slot. Row 0 is reserved
    and all zeros.
    """

    def __init__(self, sizes: PoolSizes, max_context: int, device: torch.device) -> None:
        self.full_to_swa_index_mapping = torch.zeros(
            sizes.slots(Kind.FULL) + 1, dtype=torch.int64, device=device
        )
        self.req_to_token = torch.zeros(
            (sizes.rows + 1, max_context), dtype=torch.int32, device=device
        )
        self.reset()

    def reset(self) -> None:
        """Clear all indices."""
        self.full_to_swa_index_mapping.zero_()
        self.full_to_swa_index_mapping[-1] = -1
        self.req_to_token.zero_()

    def write(self, values: Mapping[str, Tensor]) -> None:
        """Write the slots of a batch, from its values on the device, int64 [N]."""
        full = values["out_cache_loc"]
        self.req_to_token[values["row"], values["column"]] = full.to(torch.int32)
        self.full_to_swa_index_mapping[full] = values["swa_slot"]


class KVLayout:
    """The layout of K and V of target and draft model, and of recurrent states, in a flat storage.

    `sizes` are the sizes of both pools. The states follow both pools.
    """

    def __init__(self, configs: Mapping[Role, ModelConfig], sizes: PoolSizes) -> None:
        self.configs = configs
        self.sizes = sizes
        self._arenas: dict[tuple[Role, Kind], tuple[int, torch.Size]] = {}
        end = 0
        for role, config in configs.items():
            for kind in Kind:
                shape, layers = config.shape(kind), len(config.layers_of(kind))
                slots = sizes.slots(kind), shape.kv_heads, shape.head_dim
                arena = torch.Size((layers, 2, *slots))
                self._arenas[role, kind] = end, arena
                end += arena.numel()
        width = max(config.hidden for config in configs.values())
        self._states = end, torch.Size((sizes.rows + 1, STATE_ROWS, width))
        self.elements = end + self._states[1].numel()

    def arena_of(self, flat: Tensor, role: Role, kind: Kind) -> Tensor:
        """Return the view of one sub-pool of a tensor in the storage's layout.

        It is [layers of that kind, 2 (K, V), slots, kv_heads, head_dim].
        """
        first, shape = self._arenas[role, kind]
        return flat[first : first + shape.numel()].view(shape)

    def arenas_of(self, flat: Tensor) -> Iterator[tuple[Role, Kind, Tensor]]:
        """Yield the model, kind and view of each sub-pool of a tensor in this layout."""
        for role, kind in self._arenas:
            yield role, kind, self.arena_of(flat, role, kind)

    def states_of(self, flat: Tensor) -> Tensor:
        """Return the view of the recurrent states, [state slots, STATE_ROWS, H]."""
        first, shape = self._states
        return flat[first:].view(shape)

    def layers(self) -> Iterator[tuple[Role, Kind, int, int]]:
        """Yield model, kind, index, and index within its kind of each layer, in execution order.

        The target comes before the draft.
        """
        for role, config in self.configs.items():
            for layer, kind in enumerate(config.layers):
                yield role, kind, layer, config.layers_of(kind).index(layer)


class HybridKVPool:
    """K and V of all layers of one model, with a view of the storage per sub-pool.

    `arena[kind]` is indexed by slot number: see `KVLayout.arena_of`. `caches` has K and V of each
    layer, [2, slots, kv_heads, head_dim].
    """

    def __init__(self, role: Role, layout: KVLayout, storage: Tensor, tables: Tables) -> None:
        self.config = layout.configs[role]
        self.sizes = layout.sizes
        self.device = storage.device
        self.full_to_swa_index_mapping = tables.full_to_swa_index_mapping
        self.req_to_token = tables.req_to_token
        self.arena = {kind: layout.arena_of(storage, role, kind) for kind in Kind}
        self.caches = [
            self.arena[kind][self.config.layers_of(kind).index(index)]
            for index, kind in enumerate(self.config.layers)
        ]


class KVPools:
    """The pools of the target and of the draft model. They share slot numbers and tables.

    All KV and states are parts of one flat `storage`, so that one op copies or compares them.
    `states` has the states as rows, [state slots x STATE_ROWS, H]. Slot s begins at row
    s * STATE_ROWS. `tables` is the class of the index tables.
    """

    def __init__(
        self,
        target: ModelConfig,
        draft: ModelConfig,
        sizes: PoolSizes,
        dtype: torch.dtype,
        device: torch.device,
        tables: type[Tables] = Tables,
    ) -> None:
        self.sizes = sizes
        self.tables = tables(sizes, target.max_context, device)
        self.layout = KVLayout({Role.TARGET: target, Role.DRAFT: draft}, sizes)
        self.storage = torch.empty(self.layout.elements, dtype=dtype, device=device)
        self.pools = {
            role: HybridKVPool(role, self.layout, self.storage, self.tables) for role in Role
        }
        self.states = self.layout.states_of(self.storage).flatten(0, 1)
        self.reset(seed=0)

    def __getitem__(self, role: Role) -> HybridKVPool:
        return self.pools[role]

    def reset(self, seed: int) -> None:
        """Fill KV and states with finite garbage drawn from `seed`, and clear all indices.

        The garbage is the same on every device. Unlike zeros, it reveals a read of a slot that was
        not written.
        """
        generator = torch.Generator().manual_seed(seed)
        self.storage.copy_(torch.randn(self.storage.shape, generator=generator))
        self.tables.reset()

    def accept(self, slot: int, place: int) -> None:
        """Set a request's state to that after its verified token number `place`."""
        first = slot * STATE_ROWS
        self.states[first] = self.states[first + 1 + place]
