"""The KV groups of a paged cache, and the slots of its indices.

The engine has one flat tensor that is divided into *sectors*, each of one kind of layers at a time.
A sector is divided into blocks of one page per layer, with K before V. An index is a row of the
flat tensor: that of a token's K in the first layer of the kind. In this connector, a slot is block
* page + offset in the page. As a sector may later belong to another kind of layers, slots of
different groups can share bytes; they are *shadows* of one another.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import pages
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.watch.facts import Group, HostSlots, Layer
from paritybit.watch.weak import Weakly

TRASH = "read_trash_index", "sentinel_index", "write_trash_index"
"""The indices that padding uses: to read, to stand for new tokens, and to write."""


@dataclass(frozen=True)
class LayerGroup:
    """The group of one kind of layers: its allocator, and the layout of its blocks.

    `rows` is the number of rows of a block in the flat tensor. `trash` has the indices of TRASH.
    """

    name: str
    page: int
    rows: int
    blocks: int
    per_sector: int
    window: int | None
    trash: tuple[int, ...]
    allocator: Any = Weakly()

    def slots(self, indices: Tensor) -> Tensor:
        """Return the slots of indices, on their device. An index without a slot becomes -1."""
        indices = indices.long()
        block, place = indices // self.rows, indices % self.rows
        inside = (indices >= 0) & (block < self.blocks) & (place < self.page)
        found: Tensor = (block * self.page + place).masked_fill(~inside, -1)
        return found

    def shadows(self, other: "LayerGroup", slots: Tensor) -> Tensor:
        """Return the slots of another group that share bytes with slots of this one."""
        first = slots // self.page * self.rows + slots % self.page
        rows = first[:, None] + torch.arange(0, self.rows, self.page, device=slots.device)
        found: Tensor = (rows // other.rows * other.page + rows % other.page).flatten()
        return found

    def of_blocks(self, blocks: Iterable[int]) -> Tensor:
        """Return all slots of some blocks."""
        return pages([*blocks], self.page)

    def held(self) -> set[int]:
        """Return the blocks that requests or the prefix cache hold."""
        tables = self.allocator.block_table.values()
        return {block for table in tables for block in table} | self.cached()

    def cached(self) -> set[int]:
        """Return the blocks that only the prefix cache holds."""
        return set(self.allocator.ledger.cached_blocks)

    def unused(self) -> set[int]:
        """Return the blocks that can be shared, and that no request holds."""
        shared = set(self.allocator.ledger.block_to_hash)
        return shared.difference(*self.allocator.block_table.values())


def parts_of(cache: Any) -> dict[str, LayerGroup]:
    """Return the groups of a PagedAttentionCache by name. Raises NotRecognisedError."""
    try:
        found = {
            name: LayerGroup(
                name=name,
                allocator=one,
                page=int(one.tokens_per_page),
                rows=int(one.block_physical_stride),
                blocks=int(one.num_blocks) + 2 * int(one.blocks_per_sector),
                per_sector=int(one.blocks_per_sector),
                window=maybe(one, "sliding_window"),
                trash=tuple(int(getattr(one, which)) for which in TRASH),
            )
            for name, one in cache.cache_allocators.items()
        }
        pages = {part.page for part in found.values()}
        widths = {layers_of(part)[0].tensors[0].shape[2:] for part in found.values()}
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise NotRecognisedError(f"the layout of its cache ({error})") from error
    if len(pages) != 1 or len(widths) != 1:
        raise NotRecognisedError("a cache whose kinds of layers have pages of several sizes")
    return found


def layers_of(part: LayerGroup) -> tuple[Layer, ...]:
    """Return the tensors of a group's layers, each [blocks, page, heads, width]."""

    def blocked(rows: Tensor) -> Tensor:
        size = (part.blocks, part.page, *rows.shape[1:])
        step = rows.stride(0)
        return rows.as_strided(size, (part.rows * step, *rows.stride()))

    views = part.allocator._kv_token_views
    return tuple(
        Layer(f"layer {number}", tuple(blocked(rows) for rows in views[number]))
        for number in part.allocator.layer_indices
    )


def groups_of(parts: Mapping[str, LayerGroup]) -> list[Group]:
    """Return the KV groups for the watcher."""
    found = []
    for part in parts.values():
        reserved = set(part.slots(torch.tensor(part.trash)).tolist())
        for other in parts.values():
            if other is not part:
                written = other.slots(torch.tensor(other.trash[2:]))
                reserved |= set(other.shadows(part, written).tolist())
        found.append(
            Group(
                part.name,
                layers_of(part),
                part.window,
                frozenset(reserved),
                page_size=part.page,
                block=part.page,
            )
        )
    return found


def shadows_of(parts: Mapping[str, LayerGroup], written: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return, per group, the shadows of the slots that a forward writes in other groups."""
    found = {}
    for name, part in parts.items():
        others = (other for other in parts.values() if other is not part)
        shadows = [other.shadows(part, written[other.name]) for other in others]
        found[name] = torch.cat([written[name][:0], *shadows])
    return found


def owned(parts: Mapping[str, LayerGroup], written: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a forward may change: slots it writes, and their shadows in free blocks."""
    found = {}
    for name, shadows in shadows_of(parts, written).items():
        part, every = parts[name], shadows.unique()
        kept = torch.tensor(sorted(part.held()), dtype=torch.int64)
        free = every[~torch.isin(every // part.page, kept)]
        found[name] = torch.cat([written[name], free])
    return found


def free_and_cached(parts: Mapping[str, LayerGroup], pool: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the free slots and the slots in the prefix cache, per group."""
    trees = {name: pool._free_blocks[part.allocator.index].trees for name, part in parts.items()}
    free = {name: {b for tree in trees[name].values() for b in tree} for name in parts}
    sectors = {
        name: {block // part.per_sector for block in free[name] | part.held()}
        for name, part in parts.items()
    }
    found = {}
    for name, part in parts.items():
        others = set[int]().union(*(sectors[other] for other in parts if other != name))
        size, blocks = part.per_sector, set(free[name])
        for sector in (others - sectors[name]) | set(pool.free_sectors):
            blocks.update(range(sector * size, (sector + 1) * size))
        found[name] = part.of_blocks(blocks), part.of_blocks(part.cached())
    return found


def on_host(pool: Any) -> dict[str, HostSlots]:
    """Return the sectors of a pool to which requests are offloaded, and the free ones.

    A sector with a block that was freed twice is there twice.
    """
    if pool is None:
        return {}
    free = [
        sector
        for kind in pool._free_blocks
        for sector, blocks in kind.trees.items()
        if len({*blocks}) == kind.elems_per_tree
        for _ in range(1 + (len(blocks) > kind.elems_per_tree))
    ]
    slots = torch.tensor([*free, *pool.free_sectors], dtype=torch.int64)
    return {"sectors on the host": HostSlots(pool.num_sectors, slots, slots[:0])}
