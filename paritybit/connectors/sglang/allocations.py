"""Follows the allocators of slots, and everything that fills KV outside of forwards."""

import functools
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import Original
from paritybit.connectors.hooking import NotRecognisedError, callers, guarded
from paritybit.connectors.sglang.host import GivenBack, at_rest, slots_of
from paritybit.connectors.sglang.pools import Pool
from paritybit.connectors.sglang.recurrent import States
from paritybit.watch.facts import HostSlots
from paritybit.watch.journal import Journal
from paritybit.watch.stacks import Stack
from paritybit.watch.watcher import Watcher
from paritybit.watch.weak import ByObject

BACK_UP, LOAD_BACK = "backup_from_device_all_layer", "load_to_device_per_layer"
"""The methods of a host pool that copy slots to the host and back."""

HOST_KINDS = ("MHATokenToKVPoolHost", "AsymmetricMHATokenToKVPoolHost", "MLATokenToKVPoolHost")
"""The classes of host pools whose copies are followed."""

HOST = "host"
"""The name of a pool on the host."""


class Noting(list[Tensor]):
    """A list of an allocator that passes what is appended to `note` after its own method."""

    def __init__(self, note: Original) -> None:
        super().__init__()
        self.note = guarded(note)

    def append(self, one: Tensor) -> None:
        """Append locations that the allocator frees later."""
        self.note(super().append, one)


def occurrences(slots: Tensor) -> Tensor:
    """Return how often each slot occurs before its place, int64 [n]. Waits for no device."""
    order = slots.argsort(stable=True)
    held, place = slots[order], torch.arange(len(slots), device=slots.device)
    first = torch.nn.functional.pad(held[1:] != held[:-1], (1, 0), value=True)
    times = place - torch.where(first, place, 0).cummax(0).values
    return torch.empty_like(times).index_copy_(0, order, times)


class Allocations:
    """Reports slots that are allocated, freed, copied, filled or cached to the watcher."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.unfollowed: str | None = None
        """A host pool whose copies are not followed, if there is one."""
        self.watcher: Watcher | None = None
        self.names: ByObject[str] = ByObject()
        """The group of each pool and allocator."""
        self.pool: Pool | None = None
        self.held: dict[str, weakref.ref[Any]] = {}
        self.states: States | None = None
        self.given_back = GivenBack()
        self.collected: list[tuple[str, Tensor, Stack]] = []
        """The group, slots and lines of each call that allocators collect for a later free."""

    def follow(self, parts: Iterable[tuple[Any, str]]) -> None:
        """Record which group each pool or allocator belongs to."""
        for part, name in parts:
            self.names[part] = name

    @property
    def allocators(self) -> dict[str, Any]:
        """The allocators of the groups of the target, by group."""
        found = {name: allocator() for name, allocator in self.held.items()}
        return {name: allocator for name, allocator in found.items() if allocator is not None}

    def serve(self, pool: Pool, allocator: Any) -> bool:
        """Record the pool and the allocator that serve. Returns False for an unknown allocator."""
        self.pool = pool
        for name in pool.groups:
            part = "swa_attn_allocator" if name == pool.sliding else "full_attn_allocator"
            owner = allocator if pool.sliding is None else getattr(allocator, part, None)
            if owner is not None and hasattr(owner, "free_pages"):
                self.held[name] = weakref.ref(owner)
        self.follow((owner, name) for name, owner in self.allocators.items())
        return len(self.allocators) == len(pool.groups)

    # Allocations and frees.

    def free(self, original: Original, allocator: Any, index: Tensor, *args: Any, **kw: Any) -> Any:
        """Report slots that an allocator of single slots, or of states, frees."""
        if not collects(allocator):
            self.freed(allocator, index)
        return original(allocator, index, *args, **kw)

    def free_in_pages(
        self, original: Original, allocator: Any, index: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Report the pages that an allocator of pages frees. `index` has slots of these pages."""
        size = int(allocator.page_size)
        first = (index // size * size).sort().values
        again = torch.nn.functional.pad(first[1:] == first[:-1], (1, 0))
        if not collects(allocator):
            self.freed(allocator, first.masked_fill(again, -size))  # Waits for no device.
        return original(allocator, index, *args, **kwargs)

    def free_pages(self, original: Original, allocator: Any, *pages: Tensor, **kwargs: Any) -> Any:
        """Report the pages that an allocator of pages frees. `pages` has their numbers."""
        for numbers in pages:
            self.freed(allocator, numbers * int(allocator.page_size))
        return original(allocator, *pages, **kwargs)

    def freed(self, allocator: Any, slots: Tensor) -> None:
        """Report freed slots to the watcher, with the lines of the engine that free them."""
        name = self.names.get(allocator)
        if self.watcher is None or name is None or not slots.numel():
            return
        if not any(frame.f_code.co_name == "free_group_end" for frame in callers()):
            self.watcher.freed(name, slots)
            return
        page, before = int(getattr(allocator, "page_size", 1)), occurrences(slots)
        seen = torch.zeros_like(slots)
        for group, given, lines in self.collected:
            if group == name:
                here = torch.isin(slots, given // page * page)
                self.watcher.freed(name, slots.masked_fill(~here | (before != seen), -1), lines)
                seen += here
        self.watcher.freed(name, slots.masked_fill(before < seen, -1))

    def group(self, original: Original, allocator: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the line that frees each tensor which an allocator collects from now on."""
        result = original(allocator, *args, **kwargs)
        self.collected = []
        for name, held in list(vars(allocator).items()):
            if type(held) is list and not held and name.endswith("group"):
                note = functools.partial(self.collect, weakref.ref(allocator), name)
                setattr(allocator, name, Noting(note))
        return result

    def collect(
        self, owner: weakref.ref[Any], name: str, original: Original, index: Tensor
    ) -> None:
        """Note the line that frees locations which an allocator collects for a later free."""
        original(index)
        allocator: Any = owner()
        slots = index.long() * (int(allocator.page_size) if "page_ids" in name else 1)
        group, pool = self.names.get(allocator), self.pool
        if group is not None or pool is None or pool.sliding is None:
            found = {} if group is None else {group: slots}
        else:
            found = {pool.sliding: slots} if name.startswith("swa") else pool.slots(slots)
        if self.watcher is not None:
            lines = self.watcher.here()
            self.collected += [(group, mine, lines) for group, mine in found.items()]

    def allocate(self, original: Original, allocator: Any, *args: Any, **kwargs: Any) -> Any:
        """Report slots that an allocator allocates. A page is reported as a whole."""
        result = original(allocator, *args, **kwargs)
        name = self.names.get(allocator)
        if self.watcher is not None and name is not None and result is not None:
            self.watcher.allocated(name, result)
        return result

    def restore(self, original: Original, allocator: Any, *args: Any, **kwargs: Any) -> Any:
        """Report the slots that are free again after an allocator restored an earlier state."""
        name = self.names.get(allocator)
        if self.watcher is None or name is None:
            return original(allocator, *args, **kwargs)
        before = free_slots(allocator)
        result = original(allocator, *args, **kwargs)
        after = free_slots(allocator)
        known = torch.zeros(self.watcher.ledgers[name].slots, dtype=torch.bool, device=after.device)
        known[before] = True
        self.watcher.freed(name, after.masked_fill(known[after], -1))  # Waits for no device.
        return result

    # Copies.

    def move(
        self, original: Original, pool: Any, tgt_loc: Tensor, src_loc: Tensor, *args: Any, **kw: Any
    ) -> Any:
        """Report slots whose KV the engine copied within the pool."""
        result = original(pool, tgt_loc, src_loc, *args, **kw)
        name = self.names.get(pool)
        if self.watcher is not None and name is not None and tgt_loc.numel():
            self.watcher.copied(name, src_loc, tgt_loc)
        return result

    def copy_state(
        self, original: Original, pool: Any, source: Tensor, target: Tensor, *args: Any, **kw: Any
    ) -> Any:
        """Report states that the engine copied. A copy within a forward is judged with it."""
        result = original(pool, source, target, *args, **kw)
        name = self.names.get(pool)
        if self.watcher is None or name is None:
            return result
        if self.watcher.watching and self.states is not None:
            self.states.copied(source, target)
        else:
            self.watcher.copied(name, source, target)
        return result

    def load(
        self, original: Original, pool: Any, saved: Any, indices: Tensor, *args: Any, **kw: Any
    ) -> Any:
        """Report slots that the engine filled from the host."""
        result = original(pool, saved, indices, *args, **kw)
        name = self.names.get(pool)
        if self.watcher is not None and name is not None:
            self.watcher.forget(name, indices)
        return result

    # Pools on the host.

    def host_pool(self, original: Original, host: Any, *args: Any, **kwargs: Any) -> Any:
        """Report a host pool whose copies are not followed."""
        if not host_followed(host):
            self.unfollowed = not_followed(host)
            self.journal.undecided(self.unfollowed)
        return original(host, *args, **kwargs)

    def give_back(
        self, original: Original, component: Any, slots: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Note the host slots that a prefix cache no longer holds."""
        self.given_back.note(component, slots)
        return original(component, slots, *args, **kwargs)

    def allocate_on_host(self, original: Original, host: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the slots that a host pool allocates."""
        slots = original(host, *args, **kwargs)
        self.given_back.allocated(host, slots)
        return slots

    def back_up(self, original: Original, host: Any, *args: Any, **kwargs: Any) -> Any:
        """Report slots whose KV the engine copies to the host.

        This comes before the copy, so that nothing waits for it that comes later.
        """
        name, slots, places = self.transferred(*args, **kwargs)
        if self.watcher is not None and name is not None:
            self.watcher.store(HOST, name, slots, places, int(host.size))
        result = original(host, *args, **kwargs)
        if self.watcher is not None:
            self.watcher.note_copy()
        return result

    def load_back(self, original: Original, host: Any, *args: Any, **kwargs: Any) -> Any:
        """Report slots whose KV the engine copied back from the host, one layer at a time."""
        result = original(host, *args, **kwargs)
        name, slots, places = self.transferred(*args, **kwargs)
        if self.watcher is not None and name is not None:
            self.watcher.load(HOST, name, slots, places)
        elif self.watcher is not None:
            self.watcher.note_copy()
            self.journal.undecided(not_followed(host))
        return result

    def transferred(
        self, device_pool: Any, host_indices: Tensor, device_indices: Tensor, *_: Any, **__: Any
    ) -> tuple[str | None, Tensor, Tensor]:
        """Return the group of a copy to or from the host, its device slots and its host slots."""
        return self.names.get(device_pool), device_indices, host_indices

    # Idle moments.

    def idle(self, cache: Any, rows: tuple[list[int], int] | None, quiet: bool) -> None:
        """Report the free slots and the slots in the prefix cache to the watcher, per group.

        `rows` is None if a session is open, which may keep rows and locks. Without `quiet`,
        requests hold other slots, and only the prefix cache is judged. Raises NotRecognisedError.
        """
        if self.watcher is None or self.pool is None:
            return
        held = {name: slots[slots >= 0] for name, slots in self.pool.slots(cached(cache)).items()}
        locked, evictable = self.sizes(cache, "protected_size"), self.sizes(cache, "evictable_size")
        for name in {*locked} & {*evictable}:
            self.watcher.cached(name, held[name], locked[name] + evictable[name])
        if quiet:
            slots = {
                name: (free_slots(allocator), held[name])
                for name, allocator in self.allocators.items()
            }
            locks = None if rows is None else locked
            self.watcher.idle(slots, locks, rows, self.on_host(cache))

    def on_host(self, cache: Any) -> dict[str, HostSlots]:
        """Return the slots of the host pools of a prefix cache, if it copies nothing."""
        try:
            return slots_of(cache, self.given_back) if at_rest(cache) else {}
        except NotRecognisedError as error:
            self.journal.undecided(f"{error} are not watched")
            return {}

    def sizes(self, cache: Any, what: str) -> dict[str, int]:
        """Return the sizes that a prefix cache reports by the method `what`, per group."""
        sliding = None if self.pool is None else self.pool.sliding
        found = {}
        for name in self.allocators:
            prefix = "" if sliding is None else "swa_" if name == sliding else "full_"
            count = None
            with suppress(NotImplementedError):
                count = getattr(cache, prefix + what, lambda: None)()
            if isinstance(count, int):
                found[name] = count
        return found

    def emptied(self, original: Original, owner: Any, *args: Any, **kwargs: Any) -> Any:
        """Report that the cache was flushed, or emptied by a release or by other weights."""
        result = original(owner, *args, **kwargs)
        asked: Any = next(iter((*args, *kwargs.values())), None)
        if hasattr(asked, "flush_cache"):
            done = asked.flush_cache and result.success
        elif hasattr(asked, "tags"):
            done = "kv_cache" in (asked.tags or ("kv_cache",))
        else:
            done = result
        if self.watcher is not None and done:
            self.watcher.emptied()
        return result


def host_followed(host: Any) -> bool:
    """Return whether a class in HOST_KINDS implements the copies to and from a host pool."""
    kinds = type(host).__mro__
    owners = (
        next((kind for kind in kinds if name in vars(kind)), None) for name in (BACK_UP, LOAD_BACK)
    )
    return all(owner is not None and owner.__name__ in HOST_KINDS for owner in owners)


def not_followed(host: Any) -> str:
    """Return the message for a host pool that is not followed."""
    return f"what comes back from a {type(host).__name__} is not followed"


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


def cached(cache: Any) -> Tensor:
    """Return the locations that a prefix cache holds. Raises NotRecognisedError."""
    if hasattr(cache, "all_values_flatten"):
        try:
            values: Tensor = cache.all_values_flatten()
            return values.long()
        except (RuntimeError, ValueError):  # An empty cache has nothing to concatenate.
            return torch.empty(0, dtype=torch.int64)
    if "ChunkCache" in type(cache).__name__:
        return torch.empty(0, dtype=torch.int64)
    raise NotRecognisedError(f"the slots that a {type(cache).__name__} holds")
