"""The KV groups of a pool: the tensors of its layers, and the slots of a location.

A *location* is the number that the scheduler and `req_to_token` use for a token: its slot in a pool
without sliding windows, and in the full sub-pool of a hybrid pool. A mapping gives the slot in the
sliding sub-pool. If N ranks share contexts, location n is slot n // N of rank n % N.
"""

import weakref
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import expected
from paritybit.connectors.hooking import NotRecognisedError, maybe
from paritybit.connectors.sharing import WHOLE, Share
from paritybit.watch.bits import in_numbers
from paritybit.watch.facts import ELSEWHERE, Forward, Group, Layer
from paritybit.watch.watcher import Watcher
from paritybit.watch.weak import Weakly, weakened

LOCATIONS = "locations"
"""Stands for a group whose slots are the locations, if ranks share contexts."""

PREFILLS = ("extend", "mixed")
"""Modes that compute prompts."""


@dataclass
class SglangPool:
    """The KV pool of one model: its groups, and the sub-pool of each, by name.

    `window` counts the positions that a query of a sliding layer reads, including its own. `share`
    says which positions have slots in this rank.
    """

    pool: Any = Weakly()
    window: int | None = None
    groups: dict[str, Group] = field(default_factory=dict)
    parts: "dict[str, weakref.ref[Any]]" = field(default_factory=dict)
    sliding: str | None = None
    share: Share = WHOLE

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


def described(pool: Any, window: int | None, prefix: str = "", share: Share = WHOLE) -> SglangPool:
    """Return the groups of a pool. Raises NotRecognisedError."""
    kind = type(pool).__name__
    found = SglangPool(pool, window, share=share)
    if share.ranks > 1 and window is not None:
        raise NotRecognisedError("windows of ranks that share contexts")
    if hasattr(pool, "swa_kv_pool") and hasattr(pool, "full_kv_pool"):
        if maybe(pool, "full_to_swa_index_mapping") is None or (window or 0) <= 1:
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
        group = Group(prefix + name, tuple(layers(part)), span, frozenset(range(page)), page)
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
        yield Layer(f"layer {number + int(pool.start_layer or 0)}", held)


# Recurrent states.
#
# A state depends on all tokens up to some position, and each forward replaces it. It is reported as
# the slot of that position alone, in a group whose window is two positions: a row reads the state
# after its last cached position, and writes that after its last computed one, usually into the same
# slot. For a cached prefix, the engine first copies the state from the slot of the cache.

NAME = "state"
"""The name of the group of states."""

WINDOW = 2
"""The positions that a query reads: its own, and the one before, whose state has all others."""

NONE = -1
"""Stands for the source slot of a state that must not be copied."""

UNKNOWN = ("replayssm_d", "replayssm_k", "replayssm_g")
"""Other tensors of a state, which are not supported."""


@dataclass
class SglangStates:
    """The states of the requests in a table of requests.

    `due` are the copies that the current forward must make first, and `seen` those that it made,
    each by target slot. A row with nothing cached must start from the initial state: its source is
    NONE.
    """

    table: Any = Weakly()
    due: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Any) -> "SglangStates | None":
        """Return the states of a table, or None if it has none. Raises NotRecognisedError."""
        pool = maybe(table, "mamba_pool")
        if pool is None:
            return None
        if maybe(table, "enable_mamba_extra_buffer"):
            raise NotRecognisedError("states that are tracked in slots of their own")
        if maybe(table, "mamba_ckpt_pool") is not None or "Unified" in type(pool).__name__:
            raise NotRecognisedError("states that are kept in another form")
        held = pool.mamba_cache
        unknown = any(maybe(held, name) is not None for name in UNKNOWN)
        if unknown or hasattr(held, "intermediate_conv_window"):
            raise NotRecognisedError("states of drafts")
        return cls(table)

    @property
    def group(self) -> Group:
        """The KV group of the states. Padding uses slot 0."""
        held = self.table.mamba_pool.mamba_cache
        parts = [*held.conv, held.temporal]
        layers = (
            Layer(f"recurrent layer {at}", tuple(part[at] for part in parts if part.numel()))
            for at in range(len(parts[0]))
        )
        return weakened(Group(NAME, tuple(layers), WINDOW))

    def parts(self) -> Iterator[tuple[Any, str]]:
        """Yield the objects that allocate and copy slots, with the name of the group."""
        for part in (self.table.mamba_pool, maybe(self.table, "mamba_allocator")):
            if part is not None:
                yield part, NAME

    @property
    def free(self) -> Tensor:
        """The free slots."""
        held = [part.free_slots for part, _ in self.parts() if hasattr(part, "free_slots")]
        slots: Tensor = held[-1]
        return slots

    def written(self, batch: Any) -> dict[str, Tensor]:
        """Return the slots that a batch writes."""
        return {NAME: self.table.req_index_to_mamba_index_mapping[batch.req_pool_indices]}

    def with_states(self, batch: Any, forward: Forward, found: Any) -> tuple[Forward, Any]:
        """Add the slots of states to the facts and the rows of a forward."""
        mine, listed = self.written(batch)[NAME].tolist(), dict[int, int]()
        ends = (maybe(batch, f"mamba_cow_{end}_indices") for end in ("dst", "src"))
        pairs = [one.tolist() for one in ends if isinstance(one, Tensor)]
        if len(pairs) == 2 and forward.kind in PREFILLS:  # From a cached prefix.
            listed = dict(zip(*pairs, strict=True))
        self.due, self.seen = {}, {}
        rows = []
        for at, row in found.pairs:
            slots = torch.full((row.cached + row.computed,), -1)
            slots[-1] = mine[at]
            if row.cached:
                slots[row.cached - 1] = listed.get(mine[at], mine[at])
            if mine[at] in listed:
                self.due[mine[at]] = listed[mine[at]] if row.cached else NONE
            rows.append(replace(row, slots={**row.slots, NAME: slots}))
        return replace(forward, rows=tuple(rows)), replace(found, rows=rows)

    def copied(self, source: Tensor, target: Tensor) -> None:
        """Record a copy that the current forward made."""
        self.seen.update(zip(target.tolist(), source.tolist(), strict=True))

    def judge(self, watcher: Watcher) -> None:
        """Judge, at the end of a forward, the copies that it made."""
        if self.due:
            made = torch.tensor([self.seen.get(target, NONE) for target in self.due])
            watcher.judge_inputs("states", [expected("copied states", made, [*self.due.values()])])
        self.due = {}
