"""The pool of blocks of an engine: its tensors by slot, and the groups that share it.

Slot s is token s % size of block s // size. Block 0 is never given to a request: tables name it
where a block is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paritybit.watch.facts import Group, Layer

GROUP = "blocks"
"""The name of the one KV group."""

KINDS = {"FullAttentionSpec": False, "SlidingWindowSpec": True}
"""The kinds of groups that are followed, and whether each has a window."""


class NotRecognisedError(ValueError):
    """Something of the engine that the connector does not know."""


@dataclass(frozen=True)
class Pool:
    """The pool: `windows` and `layers` have an entry for each of the engine's groups."""

    group: Group
    page: int
    windows: tuple[int | None, ...]
    layers: tuple[str, ...]
    """The first layer of each group."""

    def slots(self, blocks: Sequence[int]) -> Tensor:
        """Return the slots of some blocks, int64 [blocks * page]; -1 for block 0."""
        numbers = torch.tensor(blocks, dtype=torch.int64)[:, None]
        slots = numbers * self.page + torch.arange(self.page)
        return slots.masked_fill(numbers == 0, -1).flatten()


def described(config: Any, layers: Any) -> Pool:
    """Return the pool of a configuration of KV caches, whose layers hold their tensors.

    Raises NotRecognisedError.
    """
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    unknown = {type(spec).__name__ for spec in specs} - set(KINDS)
    if unknown:
        raise NotRecognisedError(f"a KV cache group of kind {', '.join(sorted(unknown))}")
    sizes = {int(spec.block_size) for spec in specs}
    if len(sizes) != 1:
        raise NotRecognisedError(f"groups whose blocks have {sorted(sizes)} tokens")
    (page,) = sizes
    tensors: dict[tuple[int, ...], tuple[list[str], tuple[Tensor, ...]]] = {}
    cut = set[int | None]()
    for name in (name for group in config.kv_cache_groups for name in group.layer_names):
        cache = layers[name].kv_cache
        cache = cache[0] if isinstance(cache, (list, tuple)) else cache
        parts, block = by_slot(cache, config.num_blocks, page)
        cut.add(block)
        tensors.setdefault(tuple(part.data_ptr() for part in parts), ([], parts))[0].append(name)
    if len(cut) != 1:
        raise NotRecognisedError("KV caches that are cut into blocks differently")
    return Pool(
        Group(
            GROUP,
            tuple(Layer(", ".join(names), parts) for names, parts in tensors.values()),
            reserved=frozenset(range(page)),
            page_size=page,
            block=cut.pop(),
        ),
        page,
        tuple(int(one.sliding_window) if KINDS[type(one).__name__] else None for one in specs),
        tuple(group.layer_names[0] for group in config.kv_cache_groups),
    )


def by_slot(cache: Tensor, blocks: int, page: int) -> tuple[tuple[Tensor, ...], int | None]:
    """Return views [slots, ...] of a layer's KV cache, and None.

    Where slots do not follow one another, return views [blocks, block size, ...], and that size.
    Raises NotRecognisedError for any other cache.
    """
    if cache.shape[0] == 2 != blocks and cache.shape[1] * cache.shape[2] == blocks * page:
        return tuple(cache[part].flatten(0, 1) for part in (0, 1)), None
    for axis in range(1, cache.dim()):
        whole = cache.shape[0] * cache.shape[axis] == blocks * page
        if whole and cache.stride(0) == cache.shape[axis] * cache.stride(axis):
            moved = cache.movedim(axis, 1)
            shape, strides = moved.shape, moved.stride()
            size = (shape[0] * shape[1], *shape[2:])
            return (cache.as_strided(size, strides[1:], cache.storage_offset()),), None
    if (
        cache.dim() == 5
        and cache.shape[1] == 2
        and cache.shape[0] * cache.shape[2] == blocks * page
    ):
        return (cache[:, 0], cache[:, 1]), cache.shape[2]  # [blocks, K and V, block size, ...]
    raise NotRecognisedError(f"a KV cache of shape {tuple(cache.shape)}, strides {cache.stride()}")
