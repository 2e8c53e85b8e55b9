"""The KV groups of a pool: the tensors of its layers, and the slots of a location.

A *location* is the number that the scheduler and `req_to_token` use for a token: its slot in a pool
without sliding windows, and in the full sub-pool of a hybrid pool. A mapping gives the slot in the
sliding sub-pool. If N ranks share contexts, location n is slot n // N of rank n % N.
"""

import weakref
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import index_keys
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.connectors.sharing import WHOLE, Share
from paritybit.watch.bits import in_numbers
from paritybit.watch.facts import ELSEWHERE, Group, Layer, Window
from paritybit.watch.weak import Weakly, weakened

LOCATIONS = "locations"
"""Stands for a group whose slots are the locations, if ranks share contexts."""

INDEX_KEYS = "index_k_with_scale_buffer"
"""The attribute of a pool with the keys of an indexer, per layer and page."""

PREFILLS = ("extend", "mixed")
"""Modes that compute prompts."""


@dataclass
class SglangPool:
    """The KV pool of one model: its groups, and the sub-pool of each, by name.

    `window` is that of sliding layers: the number of positions that a query reads, including its
    own, or chunks, whose slots are in the same sub-pool. `share` says which positions have slots in
    this rank.
    """

    pool: Any = Weakly()
    window: Window | None = None
    groups: dict[str, Group] = field(default_factory=dict)
    parts: "dict[str, weakref.ref[Any]]" = field(default_factory=dict)
    sliding: str | None = None
    share: Share = WHOLE

    @property
    def keys(self) -> int:
        """The number of positions in the window of sliding layers, or 1 if it has no number."""
        return self.window if isinstance(self.window, int) else 1

    @property
    def located(self) -> str | None:
        """The name of the group whose slots are the locations, or None if there is none."""
        return self.group_of(sliding=False) if self.share.ranks == 1 else LOCATIONS

    def group_of(self, sliding: bool) -> str | None:
        """Return the name of the group of sliding layers, or of the other layers."""
        names = [name for name in self.groups if (name == self.sliding) == sliding]
        return names[0] if names else None

    @property
    def mapping(self) -> Tensor:
        """The slot in the sliding sub-pool of each location; 0 means none."""
        mapping: Tensor = self.pool.full_to_swa_index_mapping
        return mapping

    def slots(self, locations: Tensor | None) -> dict[str, Tensor]:
        """Return, per group, the slots of locations. A location without a slot gives -1."""
        if locations is None:
            return {}
        found = dict.fromkeys(self.groups, locations)
        if self.share.ranks > 1:
            slots = locations // self.share.ranks
            mine = slots.where(self.share.mine(locations), ELSEWHERE)
            return dict.fromkeys(found, mine)
        if self.sliding in found:
            slots = self.mapping[locations.long()]
            found[self.sliding] = torch.where(slots > 0, slots, -1)
        return found

    def pages(self, locations: Tensor) -> Tensor:
        """Return the first slot of each page that begins at one of some locations, or else -1."""
        if self.share.ranks == 1:
            return locations
        return (locations // self.share.ranks).where(locations % self.share.ranks == 0, -1)

    @cached_property
    def dtype_of_windows(self) -> torch.dtype | None:
        """The dtype of slots in the sliding sub-pool, by a copy of the pool: it may keep them."""
        translate = maybe(copy(self.pool), "translate_loc_from_full_to_swa")
        if self.sliding is None or translate is None:
            return None
        dtype: torch.dtype = translate(self.mapping.new_zeros(1, dtype=torch.int64)).dtype
        return dtype


def described(
    pool: Any, window: Window | None, prefix: str = "", share: Share = WHOLE
) -> SglangPool:
    """Return the groups of a pool. Raises NotRecognisedError."""
    kind = type(pool).__name__
    found = SglangPool(pool, window, share=share)
    if share.ranks > 1 and window is not None:
        raise NotRecognisedError("windows of ranks that share contexts")
    if hasattr(pool, "swa_kv_pool") and hasattr(pool, "full_kv_pool"):
        if maybe(pool, "full_to_swa_index_mapping") is None or window in (None, 0, 1):
            raise NotRecognisedError(f"a {kind} without a mapping or a window")
        if maybe(pool, "swa_req_ring_size") is not None:
            raise NotRecognisedError(f"a {kind} that keeps a ring of slots per request")
        parts = {"full": (pool.full_kv_pool, None), "swa": (pool.swa_kv_pool, window)}
        found.sliding = prefix + "swa"
    elif hasattr(pool, "full_kv_pool"):
        parts = {"full": (pool.full_kv_pool, None)}
    else:
        parts = {"full": (pool, None)}
    if "Unified" in kind:
        raise NotRecognisedError(f"a {kind}, whose locations are virtual")
    for name, (part, span) in parts.items():
        page = int(pool.page_size)
        block = page if maybe(part, INDEX_KEYS) is not None else None
        mine = tuple(layers(part))
        group = Group(prefix + name, mine, span, frozenset(range(page)), page, block)
        if group.layers:
            found.groups[group.name] = weakened(group)
            found.parts[group.name] = weakref.ref(part)
    if not found.groups:
        raise NotRecognisedError(f"a {kind} without layers")
    return found


def layers(pool: Any) -> Iterator[Layer]:
    """Yield the layers of a pool without sub-pools. Raises NotRecognisedError."""
    kind = type(pool).__name__
    if getattr(pool, "kv_cache_layout", "nhd") != "nhd":
        raise NotRecognisedError(f"a {kind} with the layout {pool.kv_cache_layout}")
    names = (("k_buffer", "v_buffer"), ("kv_buffer",))
    for buffers in names:
        lists = [maybe(pool, name) for name in buffers]
        if all(isinstance(tensors, (list, tuple)) for tensors in lists):
            break
    else:
        raise NotRecognisedError(f"a {kind}")
    for number, tensors in enumerate(zip(*lists, strict=True)):
        if any(len(tensor) != pool.size + pool.page_size for tensor in tensors):
            raise NotRecognisedError(f"a {kind} whose first axis is not the slot")
        held = tuple(in_numbers(tensor, maybe(pool, "dtype")) for tensor in tensors)
        if (keys := maybe(pool, INDEX_KEYS)) is not None:
            page = int(pool.page_size)
            held = *(one.unflatten(0, (-1, page)) for one in held), *indexed(pool, keys[number])
        yield Layer(f"layer {number + int(pool.start_layer or 0)}", held)


def indexed(pool: Any, keys: Tensor) -> tuple[Tensor, ...]:
    """Return the keys of an indexer by page and slot, and their scales, which follow them.

    Raises NotRecognisedError. Layers that use the choice of another layer have none.
    """
    page, width = int(pool.page_size), int(pool.index_head_dim)
    if maybe(pool, "index_kpool") not in (None, 1) or int(pool.index_page_size) != page:
        raise NotRecognisedError("an indexer with a key for several tokens, or other pages")
    return index_keys(keys, page, width) if len(keys) else ()
