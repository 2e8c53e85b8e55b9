"""The hybrid KV pool: a full and a smaller SWA sub-pool in one arena, and the map between them.

Contains the storage and the full-to-SWA mapping. The allocator knows who owns a slot, and each run
finds its write locations by itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import torch
from paritybit.reference.config import Kind, ModelConfig, Role
from paritybit.reference.state_pool import Section, StatePool, section_shapes
from torch import Tensor

Name = TypeVar("Name")

LOC_DTYPE = {Kind.FULL: torch.int64, Kind.SWA: torch.int32}
"""The store ABI: the dtype of the write locations of each sub-pool."""


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

    def alike(self) -> "Tables":
        """Return other tables that share the tensors."""
        return copy(self)

    def reset(self) -> None:
        """Clear all indices."""
        self.full_to_swa_index_mapping.zero_()
        self.full_to_swa_index_mapping[-1] = -1
        self.req_to_token.zero_()

    def write(self, rows: Tensor, columns: Tensor, full: Tensor, swa: Tensor) -> None:
        """Map (row, column) to its full slot and the full slot to its SWA slot; all int64 [N]."""
        self.req_to_token[rows, columns] = full.to(torch.int32)
        self.full_to_swa_index_mapping[full] = swa

    def read(self, full_cells: Tensor, swa_cells: Tensor) -> tuple[Tensor, Tensor]:
        """Return the full slots in `full_cells` and the SWA slots of those in `swa_cells`, int64.

        Cells are indices of the flattened `req_to_token`, int64.
        """
        table, mapping = self.req_to_token, self.full_to_swa_index_mapping
        # On a CPU, take is twice as fast as indexing.
        full, swa = (table.take(cells).to(torch.int64) for cells in (full_cells, swa_cells))
        return full, mapping.take(swa)


class HybridKVPool:
    """K and V of all layers of one model in one allocation, with a view per sub-pool.

    `storage` is flat, in the model's dtype. `arena[kind]` is its view [layers of that kind, 2 (K,
    V), slots, kv_heads, head_dim], indexed by slot number. `storage` and `tables` may be passed
    in, to be shared with another pool.
    """

    def __init__(
        self,
        config: ModelConfig,
        sizes: PoolSizes,
        dtype: torch.dtype,
        device: torch.device,
        *,
        storage: Tensor | None = None,
        tables: Tables | None = None,
    ) -> None:
        self.config = config
        self.sizes = sizes
        if storage is None:
            elements = storage_elements(config, sizes)
            storage = torch.zeros(elements, dtype=dtype, device=device)
        self.storage = storage
        self.arena = {
            kind: storage[first : first + shape.numel()].view(shape)
            for kind, (first, shape) in laid_out(arena_shapes(config, sizes), 0).items()
        }
        self.tables = tables or Tables(sizes, config.max_context, device)
        self._caches = [
            self.arena[kind][config.layers_of(kind).index(index)]
            for index, kind in enumerate(config.layers)
        ]
        self.reset(seed=0)

    def reset(self, seed: int) -> None:
        """Fill the storage with finite garbage drawn from `seed`, and clear all indices.

        Unlike zeros, garbage reveals a read of a slot that was not written.
        """
        fill_with_garbage(self.storage, seed)
        self.tables.reset()

    def alike(self, tables: Tables) -> "HybridKVPool":
        """Return another pool that shares the storage, with its own tables."""
        other = copy(self)
        other.tables = tables
        other.arena = dict(self.arena)
        other._caches = list(self._caches)
        return other

    @property
    def full_to_swa_index_mapping(self) -> Tensor:
        """The map from full to SWA slots: see `Tables`."""
        return self.tables.full_to_swa_index_mapping

    @property
    def req_to_token(self) -> Tensor:
        """The map from request rows and positions to full slots: see `Tables`."""
        return self.tables.req_to_token

    def cache(self, layer: int) -> Tensor:
        """Return K and V of one layer, [2, slots, kv_heads, head_dim]."""
        return self._caches[layer]

    def move(self, kind: Kind, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy K and V of all layers of `kind` from some slots to others, all at once."""
        moved = self.arena[kind][:, :, list(sources)]
        self.arena[kind][:, :, list(destinations)] = moved

    @property
    def device(self) -> torch.device:
        """The device of the pool."""
        return self.storage.device


class KVLayout:
    """The layout of K and V of target and draft model, and of state beside KV, in one flat storage.

    `configs` lists the target before the draft. `sizes` are the sizes of both pools. The state
    beside KV follows both pools. `counts` are the elements of each pool.
    """

    def __init__(self, configs: Mapping[Role, ModelConfig], sizes: PoolSizes) -> None:
        self.configs = configs
        self.sizes = sizes
        self.counts = [storage_elements(config, sizes) for config in configs.values()]
        widths = {config.hidden for config in configs.values()}
        arenas = {
            (role, kind): shape
            for role, config in configs.items()
            for kind, shape in arena_shapes(config, sizes).items()
        }
        sections = section_shapes(sizes.rows, max(widths)) if widths else {}
        self._arenas = laid_out(arenas, 0)
        self._sections = laid_out(sections, sum(self.counts))

    @property
    def elements(self) -> int:
        """The number of elements of the storage."""
        return sum(self.counts) + sum(shape.numel() for _, shape in self._sections.values())

    def arena_of(self, flat: Tensor, role: Role, kind: Kind) -> Tensor:
        """Return the view of one sub-pool of a tensor in the storage's layout."""
        first, shape = self._arenas[role, kind]
        return flat[first : first + shape.numel()].view(shape)

    def section_of(self, flat: Tensor, section: Section) -> Tensor:
        """Return the view of one section of state beside KV."""
        first, shape = self._sections[section]
        return flat[first : first + shape.numel()].view(shape)

    def arenas_of(self, flat: Tensor) -> Iterator[tuple[Role, Kind, Tensor]]:
        """Yield the model, kind and view of each sub-pool of a tensor in this layout."""
        for role, kind in self._arenas:
            yield role, kind, self.arena_of(flat, role, kind)

    def sections_of(self, flat: Tensor) -> dict[Section, Tensor]:
        """Return the views of all sections of state beside KV."""
        return {section: self.section_of(flat, section) for section in self._sections}

    def layers(self) -> Iterator[tuple[Role, Kind, int, int]]:
        """Yield model, kind, index, and index within its kind of each layer, in execution order.

        The target comes before the draft.
        """
        for role, config in self.configs.items():
            for layer, kind in enumerate(config.layers):
                yield role, kind, layer, config.layers_of(kind).index(layer)


class KVPools:
    """The pools of the target and of the draft model. They share slot numbers and tables.

    The storages of both, and the `state` beside KV, are parts of one flat `storage`, so that one op
    copies or compares all. `tables` is the class of the index tables.
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
        self.storage = torch.zeros(self.layout.elements, dtype=dtype, device=device)
        parts = self.storage[: sum(self.layout.counts)].split(self.layout.counts)
        self.pools = {
            role: HybridKVPool(config, sizes, dtype, device, storage=part, tables=self.tables)
            for (role, config), part in zip(self.layout.configs.items(), parts, strict=True)
        }
        self.state = StatePool(self.layout.sections_of(self.storage))

    def alike(self) -> "KVPools":
        """Return other pools that share the storage and the tensors of the tables."""
        other = copy(self)
        other.tables = self.tables.alike()
        other.layout = KVLayout(dict(self.layout.configs), self.sizes)
        other.pools = {role: pool.alike(other.tables) for role, pool in self.pools.items()}
        other.state = StatePool(self.layout.sections_of(self.storage))
        return other

    def __getitem__(self, role: Role) -> HybridKVPool:
        """Return the pool of one model."""
        return self.pools[role]

    def reset(self, seed: int) -> None:
        """Fill KV and all other state with finite garbage drawn from `seed`. Clear all indices."""
        fill_with_garbage(self.storage, seed)
        self.tables.reset()

    def arenas_of(self, flat: Tensor) -> Iterator[tuple[Role, Kind, Tensor]]:
        """Yield the model, kind and view of each sub-pool of a tensor in the storage's layout."""
        return self.layout.arenas_of(flat)

    def sections_of(self, flat: Tensor) -> dict[Section, Tensor]:
        """Return the views of all sections of state beside KV."""
        return self.layout.sections_of(flat)


def laid_out(shapes: Mapping[Name, torch.Size], first: int) -> dict[Name, tuple[int, torch.Size]]:
    """Return the first element of each part: parts are contiguous from element `first` on."""
    begins = accumulate((shape.numel() for shape in shapes.values()), initial=first)
    return {
        name: (begin, shape) for begin, (name, shape) in zip(begins, shapes.items(), strict=False)
    }


def arena_shapes(config: ModelConfig, sizes: PoolSizes) -> dict[Kind, torch.Size]:
    """Return the shape of each sub-pool of a model's pool."""
    return {
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


def storage_elements(config: ModelConfig, sizes: PoolSizes) -> int:
    """Return the number of elements of a model's pool."""
    return sum(shape.numel() for shape in arena_shapes(config, sizes).values())


def fill_with_garbage(storage: Tensor, seed: int) -> None:
    """Fill `storage` with finite values from `seed`, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    storage.copy_(torch.randn(storage.shape, generator=generator))
