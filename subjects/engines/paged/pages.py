"""KV in blocks that block tables list, and its bijection with the pages of a world.

A page of the world is as large as a block.
"""

from collections.abc import Collection, Iterator, Sequence

import torch
from paritybit.reference.config import Kind
from paritybit.reference.pool import HybridKVPool
from paritybit.subjects.engines.shared.paired import (
    PairedKV,
    Plane,
    inverse,
    pair_slots,
    unpaired_of,
)
from torch import Tensor

Cache = tuple[Tensor, Tensor]
"""K and V of a layer, each [blocks, slots of a block, kv_heads, head_dim]."""


class PairedPages(PairedKV):
    """Pairs the pages of each sub-pool of a world with an engine's `blocks`; 0 is nobody's.

    `pools` are those of the models that share them, `caches` the layers of one after another's.
    Through it all KV is read in the world's layout and slot numbers, and written.
    """

    unit = "block"

    def __init__(self, pools: Sequence[HybridKVPool], caches: Sequence[Cache], blocks: int) -> None:
        self.pools = pools
        self.caches = caches
        self.blocks = blocks
        self.size = pools[0].sizes.page_size
        self._places = dict[Kind, Tensor]()
        self._ours = dict[Kind, tuple[int, ...]]()
        self._unpaired = dict[Kind, Tensor]()

    def pair(
        self,
        kind: Kind,
        pages: Sequence[Sequence[int | None]],
        blocks: Sequence[Sequence[int]],
    ) -> None:
        """Pair the pages that requests have with their blocks, in order, and what is free.

        A page that is None or a block that is 0 has left the window: it has no counterpart.
        """
        ours, theirs, apart = list[int](), list[int](), list[int]()
        for of_world, of_engine in zip(pages, blocks, strict=True):
            for page, block in zip(of_world, of_engine, strict=False):
                if block and page is None:
                    apart.append(block)
                elif block and page is not None:
                    ours.append(page)
                    theirs.append(block)
        count = self.pools[0].sizes.slots(kind) // self.size
        paired = pair_slots(count, 1, ours, theirs, apart, self.blocks)
        self._places[kind], self._ours[kind] = torch.tensor(paired), inverse(paired)
        self._unpaired[kind] = unpaired_of(paired, self.blocks)

    def ours(self, kind: Kind, slots: Collection[int]) -> list[int]:
        """Return the world's slots of some of the engine's, -1 for what is no slot."""
        known, found = self._ours[kind], []
        for slot in slots:
            block = slot // self.size
            page = known[block] if 0 <= block < len(known) else -1
            found.append(-1 if page < 0 else page * self.size + slot % self.size)
        return found

    def _planes(self) -> Iterator[Plane]:
        """Yield K or V of each layer: of the world in pages, of the engine in blocks."""
        layers = [(pool, *layer) for pool in self.pools for layer in enumerate(pool.config.layers)]
        for (pool, layer, kind), cache in zip(layers, self.caches, strict=True):
            for plane, buffer in zip(pool.cache(layer), cache, strict=True):
                pages = plane.unflatten(0, (-1, self.size))
                yield Plane(pages, buffer, self._places[kind], self._unpaired[kind])
