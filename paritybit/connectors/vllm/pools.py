"""The pool of blocks of an engine: its tensors by slot, and the groups that share it.

Slot s is token s % size of block s // size. Block 0 never belongs to a request: a block table has
it in place of a missing block.

The layers of a draft model belong to one of the engine's groups. If they share tensors with layers
of the target, they share them by block, and only the draft writes blocks of its group. The tensors
of the draft are therefore a separate KV group. Rows of the target have slots there if their group
has layers with these tensors.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import NotRecognisedError
from paritybit.watch.bits import in_numbers
from paritybit.watch.facts import Group, Layer
from paritybit.watch.weak import weakened

GROUP, DRAFTED = "blocks", "draft blocks"
"""The names of the KV groups: tensors without layers of a draft model, and with them."""

FLOATS = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_per_token_head": torch.float8_e4m3fn,
}
"""The dtypes of KV that the engine stores as plain bytes, by the engine's names."""

KINDS = {"FullAttentionSpec": False, "SlidingWindowSpec": True}
"""The supported kinds of groups, and whether each has a window."""


@dataclass(frozen=True)
class Draft:
    """The engine's group with the layers of a draft model: its number, window and first layer."""

    number: int
    window: int | None
    layer: str


@dataclass(frozen=True)
class Pool:
    """The pool of blocks.

    `windows`, `layers`, `numbers` and `held` have an entry for each of the engine's groups with
    layers of the target.
    """

    groups: tuple[Group, ...]
    page: int
    windows: tuple[int | None, ...]
    layers: tuple[str, ...]
    """The first layer of each group."""
    numbers: tuple[int, ...]
    """The engine's number of each group."""
    held: tuple[tuple[str, ...], ...]
    """The KV groups whose tensors each group has layers in."""
    draft: Draft | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the KV groups."""
        return tuple(group.name for group in self.groups)

    def of_draft(self, metadata: Any) -> bool:
        """Return whether attention metadata by layer belong only to the draft model."""
        return (
            self.draft is not None
            and isinstance(metadata, dict)
            and self.draft.layer in metadata
            and not any(name in metadata for name in self.layers)
        )

    def slots(self, blocks: Sequence[int]) -> Tensor:
        """Return the slots of some blocks, int64 [blocks * page]; -1 for block 0."""
        numbers = torch.tensor(blocks, dtype=torch.int64)[:, None]
        slots = numbers * self.page + torch.arange(self.page)
        return slots.masked_fill(numbers == 0, -1).flatten()


def described(config: Any, layers: Any, drafts: Collection[str] = ()) -> Pool:
    """Return the pool for a configuration of KV caches."""
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    unknown = {type(spec).__name__ for spec in specs} - set(KINDS)
    if unknown:
        raise NotRecognisedError(f"a KV cache group of kind {', '.join(sorted(unknown))}")
    sizes = {int(spec.block_size) for spec in specs}
    if len(sizes) != 1:
        raise NotRecognisedError(f"groups whose blocks have {sorted(sizes)} tokens")
    (page,) = sizes
    tensors, block = tensors_of(config, layers, page)
    shared = [any(name in drafts for name in names) for names, _ in tensors]
    groups = tuple(
        Group(
            kind,
            tuple(
                Layer(", ".join(names), parts)
                for (names, parts), mixed in zip(tensors, shared, strict=True)
                if mixed == (kind == DRAFTED)
            ),
            reserved=frozenset(range(page)),
            page_size=page,
            block=block,
        )
        for kind in (GROUP, *([DRAFTED] if any(shared) else []))
    )
    groups = tuple(map(weakened, groups))
    if not groups[0].layers:
        raise NotRecognisedError("a draft model that shares all tensors with its target")
    of_tensor = {
        name: DRAFTED if mixed else GROUP
        for (names, _), mixed in zip(tensors, shared, strict=True)
        for name in names
    }
    return grouped(config, groups, page, of_tensor, drafts)


def grouped(
    config: Any,
    groups: tuple[Group, ...],
    page: int,
    of_tensor: Mapping[str, str],
    drafts: Collection[str],
) -> Pool:
    """Return the pool of KV groups. `of_tensor` maps a layer to the KV group of its tensor."""
    windows, layers, numbers, held, draft = [], [], list[int](), [], None
    for number, group in enumerate(config.kv_cache_groups):
        spec, names = group.kv_cache_spec, group.layer_names
        window = int(spec.sliding_window) if KINDS[type(spec).__name__] else None
        own = [name for name in names if name not in drafts]
        if len(own) < len(names):
            if draft is not None:
                raise NotRecognisedError("a draft model with layers in several groups")
            draft = Draft(number, window, next(name for name in names if name in drafts))
        if own:
            windows.append(window)
            layers.append(own[0])
            numbers.append(number)
            held.append(tuple(sorted({of_tensor[name] for name in own})))
    return Pool(groups, page, tuple(windows), tuple(layers), tuple(numbers), tuple(held), draft)


def tensors_of(
    config: Any, layers: Any, page: int
) -> tuple[list[tuple[list[str], tuple[Tensor, ...]]], int | None]:
    """Return the tensors of a pool by slot, with the layers that share each, and a block size."""
    tensors: dict[tuple[int, ...], tuple[list[str], tuple[Tensor, ...]]] = {}
    cut = set[int | None]()
    for name in (name for group in config.kv_cache_groups for name in group.layer_names):
        cache = layers[name].kv_cache
        cache = cache[0] if isinstance(cache, (list, tuple)) else cache
        cache = in_numbers(cache, FLOATS.get(getattr(layers[name], "kv_cache_dtype", "")))
        parts, block = by_slot(cache, config.num_blocks, page)
        cut.add(block)
        tensors.setdefault(tuple(part.data_ptr() for part in parts), ([], parts))[0].append(name)
    if len(cut) != 1:
        raise NotRecognisedError("KV caches that are cut into blocks differently")
    return list(tensors.values()), cut.pop()


def by_slot(cache: Tensor, blocks: int, page: int) -> tuple[tuple[Tensor, ...], int | None]:
    """Return views [slots, ...] of a layer's KV cache, and None.

    If the blocks are not contiguous, return views [blocks, block size, ...], and the block size.
    Raises NotRecognisedError for any other layout.
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
