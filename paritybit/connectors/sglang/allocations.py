"""Follows the allocators of slots, and everything that fills KV outside of forwards."""

import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import HOST, Following
from paritybit.connectors.hooking import Call, NotRecognisedError, callers
from paritybit.connectors.sglang.pools import SglangPool
from paritybit.connectors.sglang.recurrent import NAME, States
from paritybit.watch.facts import HostSlots
from paritybit.watch.stacks import Stack
from paritybit.watch.weak import ByObject

HOST_KINDS = ("MHATokenToKVPoolHost", "AsymmetricMHATokenToKVPoolHost", "MLATokenToKVPoolHost")
"""The classes of host pools whose copies are followed."""

CACHED, CACHED_STATES = "all_values_flatten", "all_mamba_values_flatten"
"""The methods of a prefix cache that return the locations, and the states, that it holds."""


POOLS = ("kv", "swa", "mamba")
"""The names of host pools, by the number of a node's component."""

UNDER_WAY = ("ongoing_write_through", "ongoing_load_back", "ongoing_prefetch", "ongoing_backup")
"""What a prefix cache is copying. These copies may use host slots that no node holds."""


class Allocations(Following):
    """The part of an engine that reports slots that are allocated, freed, copied or cached."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.copied_elsewhere: str | None = None
        """Why KV may be copied without being followed, or None."""
        self.names: ByObject[str] = ByObject()
        """The group of each pool and allocator."""
        self.pool: SglangPool | None = None
        self.serving: dict[str, weakref.ref[Any]] = {}
        self.states: States | None = None
        self.collected: list[tuple[str, Tensor, Stack]] = []
        """The group, slots and lines of each call that allocators collect for a later free."""

    def follow(self, parts: Iterable[tuple[Any, str]]) -> None:
        """Record which group each pool or allocator belongs to."""
        for part, name in parts:
            self.names[part] = name

    @property
    def allocators(self) -> dict[str, Any]:
        """The allocators of the groups of the target, by group."""
        found = {name: allocator() for name, allocator in self.serving.items()}
        return {name: allocator for name, allocator in found.items() if allocator is not None}

    def serve(self, pool: SglangPool, allocator: Any) -> bool:
        """Record the pool and the allocator that serve. Returns False for an unknown allocator."""
        self.pool = pool
        for name in pool.groups:
            part = "swa_attn_allocator" if name == pool.sliding else "full_attn_allocator"
            owner = allocator if pool.sliding is None else getattr(allocator, part, None)
            if owner is not None and hasattr(owner, "free_pages"):
                self.serving[name] = weakref.ref(owner)
        self.follow((owner, name) for name, owner in self.allocators.items())
        return len(self.allocators) == len(pool.groups)

    def note(self, part: Any, method: str, *given: Any) -> None:
        """Report slots of a pool or allocator to the watcher, if it watches their group."""
        name = self.names.get(part)
        if self.watcher is not None and name is not None:
            getattr(self.watcher, method)(name, *given)

    # Allocations and frees.

    def free(self, original: Call, allocator: Any, index: Tensor) -> None:
        """Report slots that an allocator of single slots, or of states, frees."""
        if not collects(allocator):
            self.freed(allocator, index)

    def free_in_pages(self, original: Call, allocator: Any, index: Tensor) -> None:
        """Report the pages that an allocator of pages frees. `index` has slots of these pages."""
        size = int(allocator.page_size)
        first = (index // size * size).sort().values
        again = torch.nn.functional.pad(first[1:] == first[:-1], (1, 0))
        if not collects(allocator):
            self.freed(allocator, first.masked_fill(again, -size))  # Waits for no device.

    def free_pages(self, original: Call, allocator: Any, *pages: Tensor) -> None:
        """Report the pages that an allocator of pages frees. `pages` has their numbers."""
        for numbers in pages:
            self.freed(allocator, numbers * int(allocator.page_size))

    def freed(self, allocator: Any, slots: Tensor) -> None:
        """Report freed slots to the watcher, with the lines of the engine that free them."""
        if any(frame.f_code.co_name == "free_group_end" for frame in callers()):
            page, rest = int(getattr(allocator, "page_size", 1)), slots
            for group, given, lines in reversed(self.collected):
                if group == self.names.get(allocator):
                    here = torch.isin(rest, given // page * page) & (rest >= 0)
                    self.note(allocator, "freed", rest.masked_fill(~here, -1), lines)
                    rest = rest.masked_fill(here, -1)
            slots = rest
        if slots.numel():
            self.note(allocator, "freed", slots)

    def group(self, original: Call, allocator: Any) -> None:
        """Forget the collected frees, because an allocator begins to collect others."""
        self.collected = []

    def collect(self, original: Call, allocator: Any, free_index: Tensor) -> None:
        """Note the lines that free locations, if the allocator collects them for a later free."""
        group, pool = self.names.get(allocator), self.pool
        if self.watcher is not None and pool is not None and collects(allocator):
            lines = self.watcher.here()
            found = pool.slots(free_index) if group is None else {group: free_index}
            self.collected += [(name, slots.clone(), lines) for name, slots in found.items()]

    def allocate(self, original: Call, allocator: Any) -> None:
        """Report slots that an allocator allocates. A page is reported as a whole."""
        result = original()
        if result is not None:
            self.note(allocator, "allocated", result)

    def restore(self, original: Call, allocator: Any) -> None:
        """Report the slots that are free again after an allocator restored an earlier state."""
        name = self.names.get(allocator)
        if self.watcher is None or name is None:
            return
        before = free_slots(allocator)
        original()
        after = free_slots(allocator)
        known = torch.zeros(self.watcher.ledgers[name].slots, dtype=torch.bool, device=after.device)
        known[before] = True
        self.watcher.freed(name, after.masked_fill(known[after], -1))  # Waits for no device.

    # Copies.

    def move(self, original: Call, pool: Any, tgt_loc: Tensor, src_loc: Tensor) -> None:
        """Report slots whose KV the engine copied within the pool."""
        original()
        if tgt_loc.numel():
            self.note(pool, "copied", src_loc, tgt_loc)

    def copy_state(self, original: Call, pool: Any, source: Tensor, target: Tensor) -> None:
        """Report states that the engine copied. A copy within a forward is judged with it."""
        original()
        if self.watcher is not None and self.watcher.watching and self.states is not None:
            self.states.copied(source, target)
        else:
            self.note(pool, "copied", source, target)

    def load(self, original: Call, pool: Any, saved: Any, indices: Tensor) -> None:
        """Report slots that the engine filled from the host."""
        original()
        self.note(pool, "forget", indices)

    # Pools on the host.

    def host_pool(self, original: Call, host: Any) -> None:
        """Follow the copies to a host pool and back, or report that they are not followed."""
        kind = type(host)
        if kind.__name__ in HOST_KINDS:
            self.hook(kind, "backup_from_device_all_layer", self.back_up)
            self.hook(kind, "load_to_device_per_layer", self.load_back)
        else:
            self.copied_elsewhere = f"what comes back from a {kind.__name__} is not followed"
            self.journal.undecided(self.copied_elsewhere)

    def back_up(
        self,
        original: Call,
        host: Any,
        device_pool: Any,
        host_indices: Tensor,
        device_indices: Tensor,
    ) -> None:
        """Report slots whose KV the engine copies to the host, before the copy."""
        name = self.names.get(device_pool)
        if self.watcher is not None and name is not None:
            self.watcher.store(HOST, name, device_indices, host_indices, int(host.size))
        original()
        if self.watcher is not None:
            self.watcher.note_copy()

    def load_back(
        self,
        original: Call,
        host: Any,
        device_pool: Any,
        host_indices: Tensor,
        device_indices: Tensor,
    ) -> None:
        """Report slots whose KV the engine copied back from the host, one layer at a time."""
        original()
        name = self.names.get(device_pool)
        if self.watcher is not None and name is not None:
            self.watcher.load(HOST, name, device_indices, host_indices)
        elif self.watcher is not None:
            self.watcher.note_copy()
            kind = type(device_pool).__name__
            self.journal.undecided(f"what comes back to a {kind} is not followed")

    # Idle moments.

    def judge_idle(self, cache: Any, rows: tuple[list[int], int] | None, quiet: bool) -> None:
        """Report free slots and those in the prefix cache, per group. Raises NotRecognisedError.

        `rows` is None if an open session may keep rows. Without `quiet`, requests hold slots.
        """
        if self.watcher is None or self.pool is None:
            return
        held = {name: slots[slots >= 0] for name, slots in self.pool.slots(cached(cache)).items()}
        if self.states is not None and hasattr(cache, CACHED_STATES):
            held[NAME] = cached(cache, CACHED_STATES)
        locked, evictable = self.sizes(cache, "protected_size"), self.sizes(cache, "evictable_size")
        for name in {*held} & {*locked} & {*evictable}:
            self.watcher.cached(name, held[name], locked[name] + evictable[name])
        if quiet:
            slots = {
                name: (free_slots(allocator), held[name])
                for name, allocator in self.allocators.items()
            }
            if rows is not None and self.states is not None and NAME in held:
                slots[NAME] = self.states.free, held[NAME]
            locks = None if rows is None else locked
            self.watcher.idle(slots, locks, rows, self.on_host(cache))

    def on_host(self, cache: Any) -> dict[str, HostSlots]:
        """Return the slots of the host pools of a prefix cache, if it copies nothing."""
        try:
            return slots_of(cache) if at_rest(cache) else {}
        except NotRecognisedError as error:
            self.journal.undecided(f"{error} are not watched")
            return {}

    def sizes(self, cache: Any, what: str) -> dict[str, int]:
        """Return the sizes that a prefix cache reports by the method `what`, per group."""
        sliding = None if self.pool is None else self.pool.sliding
        found, others = {}, "" if sliding is None else "full_"
        for name in (*self.allocators, *([] if self.states is None else [NAME])):
            prefix = {sliding: "swa_", NAME: "mamba_"}.get(name, others)
            count = None
            with suppress(NotImplementedError):
                count = getattr(cache, prefix + what, lambda: None)()
            if isinstance(count, int):
                found[name] = count
        return found

    def emptied(self, original: Call) -> None:
        """Report that the cache was flushed, or emptied by a release or by other weights."""
        done = result = original()
        if (weights := original.having("flush_cache")) is not None:
            done = weights.flush_cache and result.success
        elif (released := original.having("tags")) is not None:
            done = "kv_cache" in (released.tags or ("kv_cache",))
        if self.watcher is not None and done:
            self.watcher.emptied()


def collects(allocator: Any) -> bool:
    """Return whether an allocator collects slots now, and frees them later."""
    if hasattr(allocator, "is_not_in_free_group"):
        return not allocator.is_not_in_free_group
    return getattr(allocator, "free_group", None) is not None


def free_slots(allocator: Any) -> Tensor:
    """Return the free slots of an allocator. A slot in the free list twice occurs twice."""
    parts = [allocator.free_pages]
    for name in ("release_pages", "staged_pages"):
        held = getattr(allocator, name, None)
        parts += held if isinstance(held, list) else [] if held is None else [held]
    numbers, page = torch.cat([part.long() for part in parts]), int(allocator.page_size)
    return (numbers[:, None] * page + torch.arange(page, device=numbers.device)).flatten()


def cached(cache: Any, method: str = CACHED) -> Tensor:
    """Return what a prefix cache holds. Raises NotRecognisedError."""
    if hasattr(cache, method):
        try:
            values: Tensor = getattr(cache, method)()
            return values.long()
        except (RuntimeError, ValueError):  # An empty cache has nothing to concatenate.
            return torch.empty(0, dtype=torch.int64)
    if "ChunkCache" in type(cache).__name__:
        return torch.empty(0, dtype=torch.int64)
    raise NotRecognisedError(f"the slots that a {type(cache).__name__} holds")


# Pools on the host.


def at_rest(cache: Any) -> bool:
    """Return whether a prefix cache copies nothing and has no host slots that wait to be freed."""
    controller = getattr(cache, "cache_controller", None)
    queue = getattr(controller, "host_mem_release_queue", None)
    waiting = queue is not None and not queue.empty()
    return not waiting and not any(getattr(cache, name, None) for name in UNDER_WAY)


def slots_of(cache: Any) -> dict[str, HostSlots]:
    """Return the slots of each host pool of a prefix cache, by name. Raises NotRecognisedError.

    Caches with a single host pool, as of releases before 0.5.17, have none.
    """
    group = getattr(cache, "host_pool_group", None) or getattr(cache, "token_to_kv_pool_host", None)
    entries = (getattr(group, "entry_map", None) or {}).items()
    named = {str(getattr(name, "value", name)): entry.host_pool for name, entry in entries}
    pools = {name: pool for name, pool in named.items() if name in POOLS}
    held: dict[str, list[Tensor]] = {name: [torch.empty(0, dtype=torch.int64)] for name in pools}
    locked = dict.fromkeys(pools, 0)
    try:
        nodes = [cache.root_node] if pools else []  # Those of a tree in Rust raise an error.
        for node in nodes:
            nodes += node.children.values()
            for name, part in zip(POOLS, node.component_data, strict=False):
                if part.host_value is not None and name in pools:
                    held[name].append(part.host_value.flatten().cpu())
                    locked[name] += len(part.host_value) * (int(part.host_lock_ref) > 0)
    except NotImplementedError:
        held = {name: [pool.slot_used.cpu().nonzero().flatten()] for name, pool in pools.items()}
    return {
        f"host {name}": HostSlots(
            int(getattr(pool, "logical_size", pool.size)),
            free_of(pool),
            torch.cat(held[name]),
            locked[name],
        )
        for name, pool in pools.items()
    }


def free_of(pool: Any) -> Tensor:
    """Return the free slots of a host pool. Raises NotRecognisedError."""
    if not isinstance(getattr(pool, "free_slots", None), Tensor):
        raise NotRecognisedError(f"the free slots of a {type(pool).__name__}")
    return torch.cat([pool.free_slots, *getattr(pool, "release_slots", ())]).cpu()
