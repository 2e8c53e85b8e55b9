"""The pool of blocks of an engine: its tensors by slot, its groups, and what happens to its blocks.

Slot s is token s % size of block s // size. A block table has block 0 in place of a missing block.
The tensors with layers of a draft model are a separate KV group. Only the draft writes their blocks
in its own group, but rows of the target have slots there if their group has layers in them.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import index_keys, pages
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.connectors.sharing import WHOLE, Share
from paritybit.connectors.vllm.scheduling import Scheduling
from paritybit.watch.bits import in_numbers
from paritybit.watch.facts import ELSEWHERE, At, Chunks, Group, HostSlots, Layer, Window
from paritybit.watch.stacks import Stack
from paritybit.watch.watcher import Watcher
from paritybit.watch.weak import weakened

GROUP, DRAFTED = "blocks", "draft blocks"
"""The names of the KV groups: tensors without layers of a draft model, and with them."""

DRAFT = "draft "
"""The name of the draft model in forwards."""

FLOATS = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_per_token_head": torch.float8_e4m3fn,
}
"""The dtypes of KV that the engine stores as plain bytes, by the engine's names."""

INDEXER = "IndexerCache"
"""How the class of a layer ends that has the keys of an indexer and their scales."""

KINDS = {
    "FullAttentionSpec": False,
    "SlidingWindowSpec": True,
    "MLAAttentionSpec": False,
    "ChunkedLocalAttentionSpec": True,
}
"""The supported kinds of attention layers, and whether each has a window."""

RECURRENT = "MambaSpec"

MORE = "num_speculative_blocks"
"""The number of blocks for states of drafts."""

CONVOLVING = "MAMBA2", "GDN_ATTN", "SHORT_CONV"
"""The kinds of recurrent layers whose first tensor has the last inputs of a convolution."""

MOST_TENSORS = 2
"""The most tensors of such a layer."""

LAYOUT = "vllm.model_executor.layers.mamba.mamba_utils"
"""The module that says whether the inputs of a convolution are the last dimension."""

INSIDE = "num_prefill_checkpoint_blocks"
"""The number of blocks for states inside of a prefill."""


@dataclass(frozen=True)
class EngineGroup:
    """One of the engine's groups: its number, window and first layer, and its KV groups."""

    number: int
    window: Window | None
    layer: str
    names: tuple[str, ...] = (DRAFTED,)


@dataclass(frozen=True)
class View:
    """What some layers of a group get for its rows: its place among the groups, and a layer.

    Layers with `chunks` get a row of their own for each part of a row that lies in one chunk. Its
    keys begin with the chunk.
    """

    place: int
    layer: str = ""
    chunks: Chunks | None = None


@dataclass(frozen=True)
class States:
    """One of the engine's groups of recurrent layers: its number, and the first of its layers.

    The state after some tokens is in the block of the last one, which has `tokens` tokens. If
    forwards verify drafts, the states after each of them are in that block and the next ones.

    `whole` has the tensors by block, without those in which the first block has the inputs of all
    drafts. Of these, `inputs` has the part that belongs to the state after each draft.
    """

    number: int
    layer: str
    tokens: int
    drafts: int
    whole: Group | None
    inputs: tuple[Group, ...] = ()

    def first(self, end: int) -> int:
        """Return the column of the first block for a forward that computes up to `end`."""
        return (end - 1) // self.tokens


@dataclass(frozen=True)
class VllmPool:
    """The pool of blocks.

    `targets` are the engine's groups with layers of the target, `draft` that of a draft model, and
    `states` those of recurrent layers. `frees` is False if requests keep blocks that their window
    has left. `share` says which positions have slots in this rank. `views` are what the layers of
    the targets get.
    """

    groups: tuple[Group, ...]
    page: int
    targets: tuple[EngineGroup, ...]
    draft: EngineGroup | None = None
    frees: bool = True
    states: tuple[States, ...] = ()
    share: Share = WHOLE
    views: tuple[View, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the KV groups."""
        return tuple(group.name for group in self.groups)

    def names_of(self, number: int) -> list[str]:
        """Return the KV groups that have layers of one of the engine's groups."""
        known = (*self.targets, *(() if self.draft is None else (self.draft,)))
        return sorted({name for one in known if one.number == number for name in one.names})

    def of_draft(self, metadata: Any) -> bool:
        """Return whether attention metadata by layer belong only to the draft model."""
        return (
            self.draft is not None
            and isinstance(metadata, dict)
            and self.draft.layer in metadata
            and not any(one.layer in metadata for one in self.targets)
        )

    def slots(self, blocks: Sequence[int]) -> Tensor:
        """Return the slots of some blocks, int64 [blocks * page]; -1 for block 0."""
        numbers = torch.as_tensor(blocks, dtype=torch.int64)
        slots = pages(numbers, self.page)
        return slots.masked_fill((numbers == 0).repeat_interleave(self.page), -1)

    def of_positions(self, blocks: Sequence[int]) -> Tensor:
        """Return the slots of all positions in some blocks, or ELSEWHERE."""
        slots = self.slots(blocks)
        if self.share.ranks == 1:
            return slots
        found = slots.new_full((len(slots) * self.share.ranks,), ELSEWHERE)
        found[self.share.mine(torch.arange(len(found)))] = slots
        return found


def described(
    config: Any, layers: Any, drafts: Collection[str] = (), share: Share = WHOLE
) -> VllmPool:
    """Return the pool of attention layers and of those of a draft. Raises NotRecognisedError."""
    known = [
        (number, group)
        for number, group in enumerate(config.kv_cache_groups)
        if type(group.kv_cache_spec).__name__ != RECURRENT
    ]
    specs = [spec for _, group in known for spec in specs_of(group)]
    unknown = {type(spec).__name__ for spec in specs} - set(KINDS)
    if unknown:
        raise NotRecognisedError(f"a KV cache group of kind {', '.join(sorted(unknown))}")
    if any(maybe(spec, "tokens_per_state") not in (None, 1) for spec in specs):
        raise NotRecognisedError("a group with KV of several tokens together")
    if share.ranks > 1 and not all(maybe(spec, "dcp_sharded") for spec in specs):
        raise NotRecognisedError("a group whose KV each rank of a context has as a whole")
    sizes = {int(spec.block_size) for spec in specs}
    if len(sizes) != 1:
        raise NotRecognisedError(f"groups whose blocks have {sorted(sizes)} tokens")
    (page,) = sizes
    tensors, block = tensors_of(config, [group for _, group in known], layers, page)
    of_tensor = {
        name: DRAFTED if any(one in drafts for one in names) else GROUP
        for names, _ in tensors
        for name in names
    }
    parts: dict[str, list[Layer]] = {GROUP: [], DRAFTED: []}
    alone = len(known) == 1  # Layers with and without windows may be in one group.
    for names, held in tensors:
        window = window_of(layers[names[0]]) if alone else None
        parts[of_tensor[names[0]]].append(Layer(", ".join(names), held, window))
    if not parts[GROUP]:
        raise NotRecognisedError("a draft model that shares all tensors with its target")
    reserved = frozenset(range(page))
    groups = tuple(
        weakened(Group(kind, tuple(mine), reserved=reserved, page_size=page, block=block))
        for kind, mine in parts.items()
        if mine
    )
    found, views, draft = list[EngineGroup](), list[View](), None
    for number, group in known:
        spec, own = specs_of(group)[0], [one for one in group.layer_names if one not in drafts]
        own.sort(key=lambda name: indexes(layers[name]))  # Attention has the metadata of all.
        window = window_of(spec) if KINDS[type(spec).__name__] else None
        if len(own) < len(group.layer_names):
            if draft is not None:
                raise NotRecognisedError("a draft model with layers in several groups")
            first = next(name for name in group.layer_names if name in drafts)
            draft = EngineGroup(number, window, first)
        if own:
            kinds = tuple(sorted({of_tensor[name] for name in own}))
            views += views_of(len(found), {name: window_of(layers[name]) for name in own})
            found.append(EngineGroup(number, window, own[0], kinds))
    if len(views) > len(found) > 1:
        raise NotRecognisedError("layers with and without chunks in one of several groups")
    if share.ranks > 1 and len(views) > 1:
        raise NotRecognisedError("several groups of layers whose contexts ranks share")
    frees = not any(getattr(spec, "extra_retained_tokens", 0) for spec in specs)
    states = states_of(config, layers)
    return VllmPool(groups, page, tuple(found), draft, frees, states, share, tuple(views))


def window_of(one: Any) -> Window | None:
    """Return the window of a layer, or of what layers keep."""
    if size := maybe(one, "attention_chunk_size"):
        return Chunks(int(size))
    size = maybe(one, "sliding_window")
    return None if size is None else int(size)


def views_of(place: int, windows: Mapping[str, Window | None]) -> list[View]:
    """Return what the layers of a group get, those without chunks first."""
    found = dict[Chunks | None, View]()
    for name, window in windows.items():
        chunks = window if isinstance(window, Chunks) else None
        found.setdefault(chunks, View(place, name, chunks))
    return sorted(found.values(), key=lambda view: view.chunks is not None)


def specs_of(group: Any) -> list[Any]:
    """Return what the layers of one of the engine's groups keep, without what they share."""
    each = maybe(group.kv_cache_spec, "kv_cache_specs")
    return [group.kv_cache_spec] if each is None else [*each.values()]


def indexes(layer: Any) -> bool:
    """Return whether a layer has the keys of an indexer."""
    return type(layer).__name__.endswith(INDEXER)


def states_of(config: Any, layers: Any) -> tuple[States, ...]:
    """Return the engine's groups of recurrent layers. Raises NotRecognisedError."""
    found = list[States]()
    for number, group in enumerate(config.kv_cache_groups):
        spec = group.kv_cache_spec
        if type(spec).__name__ != RECURRENT:
            continue
        drafts = getattr(spec, MORE, 0)
        if getattr(spec, INSIDE, 0) > 1:
            raise NotRecognisedError("several states inside of a prefill")
        held = {name: tuple(layers[name].kv_cache) for name in group.layer_names}
        convolves = maybe(spec, "mamba_type.name") in CONVOLVING
        if drafts and not (convolves and all(len(one) <= MOST_TENSORS for one in held.values())):
            raise NotRecognisedError(f"states of drafts in layers like {group.layer_names[0]}")
        whole = {name: tensors[1:] if drafts else tensors for name, tensors in held.items()}
        firsts = {name: tensors[:1] for name, tensors in held.items()} if drafts else {}
        last = maybe(sys.modules.get(LAYOUT), "is_conv_state_dim_first")
        axis = -1 if last is not None and last() else 1
        windows = [
            {
                name: tuple(one.narrow(axis, at, one.shape[axis] - drafts) for one in tensors)
                for name, tensors in firsts.items()
            }
            for at in range(1 + drafts if drafts else 0)
        ]
        parts = [
            weakened(Group("states", tuple(Layer(*one) for one in tensors.items())))
            for tensors in (whole, *windows)
            if any(tensors.values())
        ]
        inputs = tuple(parts[-len(windows) :] if windows else ())
        given = number, group.layer_names[0], int(spec.block_size), drafts
        found.append(States(*given, parts[0] if any(whole.values()) else None, inputs))
    return tuple(found)


def tensors_of(
    config: Any, groups: Sequence[Any], layers: Any, page: int
) -> tuple[list[tuple[list[str], tuple[Tensor, ...]]], int | None]:
    """Return the tensors of a pool by slot, with the layers that share each, and a block size."""
    tensors: dict[tuple[int, ...], tuple[list[str], tuple[Tensor, ...]]] = {}
    cut = set[int | None]()
    for name in (name for group in groups for name in group.layer_names):
        cache = layers[name].kv_cache
        cache = cache[0] if isinstance(cache, (list, tuple)) else cache
        cache = in_numbers(cache, FLOATS.get(getattr(layers[name], "kv_cache_dtype", "")))
        given = cache, config.num_blocks, page
        parts, block = of_indexer(cache) if indexes(layers[name]) else by_slot(*given)
        cut.add(block)
        tensors.setdefault(tuple(part.data_ptr() for part in parts), ([], parts))[0].append(name)
    if cut == {None, page}:
        for key, (names, parts) in tensors.items():
            if len(parts[0]) != config.num_blocks:
                tensors[key] = names, tuple(part.unflatten(0, (-1, page)) for part in parts)
        cut.remove(None)
    if len(cut) != 1:
        raise NotRecognisedError("KV caches that are cut into blocks differently")
    return list(tensors.values()), cut.pop()


def of_indexer(cache: Tensor) -> tuple[tuple[Tensor, ...], int]:
    """Return the keys of an indexer and their scales, [blocks, block size, n], and the block size.

    The cache has shape [blocks, block size, bytes]. A key has one scale.
    """
    _, page, size = cache.shape
    given = (len(cache), page * size), (cache.stride(0), 1), cache.storage_offset()
    return index_keys(cache.as_strided(*given), page, size - torch.float32.itemsize), page


def by_slot(cache: Tensor, blocks: int, page: int) -> tuple[tuple[Tensor, ...], int | None]:
    """Return views [slots, ...] of a layer's KV cache, and None.

    If the blocks are not contiguous, return views [blocks, block size, ...], and the block size.
    Raises NotRecognisedError for any other layout.
    """
    shape, slots = cache.shape, blocks * page
    if shape[0] == 2 != blocks and shape[1] * shape[2] == slots:
        return tuple(cache[part].flatten(0, 1) for part in (0, 1)), None
    for axis in range(1, cache.dim()):
        whole = shape[0] * shape[axis] == slots
        if whole and cache.stride(0) == shape[axis] * cache.stride(axis):
            moved = cache.movedim(axis, 1)
            size = (slots, *moved.shape[2:])
            return (cache.as_strided(size, moved.stride()[1:], cache.storage_offset()),), None
    if cache.dim() == 3 and shape[0] * shape[1] == slots:  # Others lie between its blocks.
        return (cache,), page
    if cache.dim() >= 4 and shape[0] * shape[2] == slots:  # By K and V, or by head.
        return tuple(cache.unbind(1)), shape[2]
    raise NotRecognisedError(f"a KV cache of shape {tuple(shape)}, strides {cache.stride()}")


# Allocations, frees, copies and leaks of blocks.


class Blocks(Scheduling):
    """The part of an engine that follows its pool of blocks."""

    pool: VllmPool | None = None

    def copies(self, watcher: Watcher, output: Any) -> None:
        """Report the blocks that the runner copies before it computes."""
        assert self.pool is not None
        for copy in output.kv_cache_block_copies or ():
            source, target = self.pool.slots([copy.src_block_id]), [copy.dst_block_id]
            for group in self.pool.names:
                watcher.copied(group, source, self.pool.slots(target))

    # What a scheduler tells.

    def changed(self, what: str, blocks: Sequence[int], lines: tuple[Any, ...]) -> None:
        """Report the first slot of each block that was allocated, shared or freed."""
        assert self.pool is not None
        slots = torch.tensor(blocks) * self.pool.page
        for group in self.pool.names:
            getattr(self.watcher, what)(group, slots, Stack(*lines))

    def forgotten(self) -> None:
        """Report that the prefix cache was emptied."""
        assert self.watcher is not None
        self.watcher.emptied()

    def elsewhere(self, what: str, pool: str, blocks: Sequence[int], lines: Any) -> None:
        """Report what happened to blocks of a pool on the host."""
        assert self.pool is not None and self.watcher is not None
        places = pages(torch.tensor(blocks), self.pool.page)
        for group in self.pool.names:
            self.watcher.happened(what, group, At(places, pool), Stack(*lines))

    def rests(
        self, free: Sequence[int], locked: int, pools: Sequence[tuple[str, int, Any, Any, int]]
    ) -> None:
        """Judge whether all blocks are free, as no request is left."""
        if self.pool is None or self.watcher is None:
            return
        if self.idle_since((self.forwards, len(pools))):  # Those with copies under way come later.
            slots: tuple[Tensor, Tensor] = self.pool.slots(free), self.pool.slots([])
            hosts = dict[str, HostSlots]()
            for name, size, *places, held in pools:
                unused, cached = (torch.tensor(one, dtype=torch.int64) for one in places)
                hosts[f"blocks on the {name}"] = HostSlots(size, unused, cached, held, name)
            hosts |= self.caches()
            self.watcher.idle(
                dict.fromkeys(self.pool.names, slots),
                dict.fromkeys(self.pool.names, locked * self.pool.page),
                hosts=hosts,
            )

    def caches(self) -> Mapping[str, HostSlots]:
        """Return the pools on the host that the scheduler does not know."""
        return {}

    def lost(self) -> None:
        """Forget what is known, because it is not known what happened."""
        assert self.watcher is not None
        self.watcher.lose()
        self.missed()
