"""Follows the allocators of slots, and everything that fills KV outside of forwards."""

import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import attributes, pages, tensors
from paritybit.connectors.hooking import Call, NotRecognisedError, callers, maybe
from paritybit.connectors.sglang.pools import SglangPool
from paritybit.connectors.sglang.rows import space
from paritybit.connectors.sglang.states import NAME, SglangStates
from paritybit.connectors.sglang.transfers import Transfers
from paritybit.watch.facts import At
from paritybit.watch.stacks import Stack
from paritybit.watch.weak import ByObject

SAVED = "saved tensors"
"""The pool that stands for the KV that requests keep on the host while they are retracted."""

CACHED, CACHED_STATES = "all_values_flatten", "all_mamba_values_flatten"
"""The methods of a prefix cache that return the locations, and the states, that it holds."""


class Allocations(Transfers):
    """The part of an engine that reports slots that are allocated, freed, copied or cached."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.files = False
        """Whether KV is also kept in files."""
        self.pool: SglangPool | None = None
        self.serving: dict[str, weakref.ref[Any]] = {}
        self.states: SglangStates | None = None
        self.collected: list[tuple[str, Tensor, Stack]] = []
        """The group, slots and lines of each call that allocators collect for a later free."""
        self.caching: Any = None
        """The request from which the prefix cache gets KV now."""
        self.saved: ByObject[tuple[int, int]] = ByObject()
        """The first and last place of each copy of a request's KV, by its first tensor."""

    def follow(self, parts: Iterable[tuple[Any, str]]) -> None:
        """Record which group each pool or allocator belongs to."""
        for part, name in parts:
            self.names[part] = name

    @property
    def allocators(self) -> dict[str, Any]:
        """The allocators of the groups of the target, by group."""
        found = {name: allocator() for name, allocator in self.serving.items()}
        return {name: allocator for name, allocator in found.items() if allocator is not None}

    @property
    def sharing(self) -> int:
        """The number of ranks that share contexts with this one, itself included."""
        return 1 if self.pool is None else self.pool.share.ranks

    def serve(self, pool: SglangPool, allocator: Any) -> bool:
        """Record the pool and the allocator that serve. Returns False for an unknown allocator."""
        self.pool = pool
        for name in pool.groups:
            part = "swa_attn_allocator" if name == pool.sliding else "full_attn_allocator"
            owner = allocator if pool.sliding is None else maybe(allocator, part)
            if owner is not None and hasattr(owner, "free_pages"):
                self.serving[name] = weakref.ref(owner)
        self.follow((owner, name) for name, owner in self.allocators.items())
        return len(self.allocators) == len(pool.groups)

    def note(self, part: Any, method: str, *given: Any) -> None:
        """Report slots of a pool or allocator to the watcher, if it watches their group."""
        name = self.names.get(part)
        if self.watcher is not None and name is not None:
            getattr(self.watcher, method)(name, *given)

    def note_pages(self, part: Any, method: str, locations: Tensor, *lines: Stack) -> None:
        """Report locations of an allocator to the watcher. Each first one of a page is its name."""
        if self.pool is not None and self.names.get(part) in self.pool.groups:
            locations = self.pool.pages(locations)
        self.note(part, method, locations, *lines)

    # Allocations and frees.

    def free(self, allocator: Any, index: Tensor) -> None:
        """Report the slots, or states, that an allocator of single ones frees."""
        if not collects(allocator):
            self.freed(allocator, index)

    def free_in_pages(self, allocator: Any, index: Tensor) -> None:
        """Report the pages that an allocator frees. `index` has slots of these pages."""
        size = int(allocator.page_size)
        first = (index // size * size).sort().values
        again = torch.nn.functional.pad(first[1:] == first[:-1], (1, 0))
        if not collects(allocator):
            self.freed(allocator, first.masked_fill(again, -size))  # Waits for no device.

    def free_pages(self, allocator: Any, *pages: Tensor) -> None:
        """Report the pages that an allocator frees, by their numbers."""
        for numbers in pages:
            self.freed(allocator, numbers * int(allocator.page_size))

    def freed(self, allocator: Any, slots: Tensor) -> None:
        """Report freed slots, with the lines of the engine that free them."""
        self.seen()
        if any(frame.f_code.co_name == "free_group_end" for frame in callers()):
            page, rest = int(getattr(allocator, "page_size", 1)), slots
            for group, given, lines in reversed(self.collected):
                if group == self.names.get(allocator):
                    here = torch.isin(rest, given // page * page) & (rest >= 0)
                    self.note_pages(allocator, "freed", rest.masked_fill(~here, -1), lines)
                    rest = rest.masked_fill(here, -1)
            slots = rest
        if slots.numel():
            self.note_pages(allocator, "freed", slots)

    def group(self, allocator: Any) -> None:
        """Forget the collected frees, because an allocator begins to collect others."""
        self.collected = []

    def collect(self, allocator: Any, free_index: Tensor) -> None:
        """Note the lines that free locations, if the allocator frees them later."""
        group, pool = self.names.get(allocator), self.pool
        if self.watcher is not None and pool is not None and collects(allocator):
            lines = self.watcher.here()
            found = pool.slots(free_index) if group is None else {group: free_index}
            self.collected += [(name, slots.clone(), lines) for name, slots in found.items()]

    def allocate(self, result: Any, allocator: Any) -> None:
        """Report slots that an allocator allocates. A page is reported as a whole."""
        if result is not None:
            self.note_pages(allocator, "allocated", result)

    def restore(self, original: Call, allocator: Any) -> None:
        """Report the slots that are free again after an allocator restored an earlier state."""
        name = self.names.get(allocator)
        if self.watcher is None or name is None:
            return
        before = self.free_slots(allocator)
        original()
        after = self.free_slots(allocator)
        known = torch.zeros(self.watcher.ledgers[name].slots, dtype=torch.bool, device=after.device)
        known[before] = True
        self.watcher.freed(name, after.masked_fill(known[after], -1))  # Waits for no device.

    # Copies.

    def move(self, result: Any, pool: Any, tgt_loc: Tensor, src_loc: Tensor) -> None:
        """Report slots whose KV the engine copied within the pool."""
        if tgt_loc.numel():
            self.note(pool, "copied", src_loc, tgt_loc)

    def copy_state(self, result: Any, pool: Any, source: Tensor, target: Tensor) -> None:
        """Report states that the engine copied. A copy within a forward is judged with it."""
        if self.watcher is not None and self.watcher.watching and self.states is not None:
            self.states.copied(source, target)
        else:
            self.note(pool, "copied", source, target)

    def clear_state(self, result: Any, pool: Any, indices: Tensor) -> None:
        """Report states that the engine cleared. A clear within a forward is judged with it."""
        if self.watcher is not None and self.watcher.watching and self.states is not None:
            self.states.cleared(indices)
        else:
            self.note(pool, "forget", indices)

    def save(self, result: Any, pool: Any, indices: Tensor) -> None:
        """Report slots of a request that the engine copied to tensors of its own on the host."""
        if (key := next(iter(tensors(result)), None)) is not None:
            first, size = 0, indices.numel()
            for start, end in sorted(span for _, span in self.saved.weak.values()):
                if start - first >= size:
                    break
                first = max(first, end)
            self.saved[key[1]] = first, first + size
            self.note(pool, "moved", At(indices), At(torch.arange(first, first + size), SAVED))

    def load(self, result: Any, pool: Any, saved: Any, indices: Tensor) -> None:
        """Report slots that the engine filled from tensors on the host."""
        key = next(iter(tensors(saved)), None)
        span = None if key is None else self.saved.get(key[1])
        if span is not None and span[1] - span[0] == indices.numel():
            self.note(pool, "moved", At(torch.arange(*span), SAVED), At(indices))
        else:
            self.note(pool, "forget", indices)

    # The prefix cache.

    def caches(self, original: Call, cache: Any, request: Any) -> None:
        """Note from which request the prefix cache gets KV."""
        with attributes((self, "caching", request)):
            original()

    def inserts(self, cache: Any, given: Any) -> None:
        """Judge the KV, and the state, that a request adds to the prefix cache for its tokens.

        Other requests may read them only much later, or never.
        """
        watcher, request, pool = self.watcher, self.caching, self.pool
        if watcher is None or request is None or pool is None or watcher.settings.every > 1:
            return
        with self.recognising("prefix_cache"):
            key, state, name = given.key, maybe(given, "mamba_value"), pool.group_of(sliding=False)
            if maybe(key, "is_bigram") or maybe(request, "multimodal_inputs") is not None:
                return
            tokens, known = [*key.token_ids][: len(key)], (request.rid, space(request))
            if name is not None and given.value is not None and pool.share.ranks == 1:
                new = pool.slots(given.value)[name][int(given.prev_prefix_len) :]
                self.offered(name, tokens, new, *known)
            if state is not None and self.states is not None:
                self.offered(NAME, tokens, state[-1:], *known)

    def offered(
        self, group: str, tokens: list[int], slots: Tensor, request: str, kept: str
    ) -> None:
        """Judge the slots of the last of some tokens of a request that others may get."""
        if self.watcher is not None and slots.numel():
            slots = slots.to("cpu", torch.int64)
            self.watcher.offered(group, request, tokens, slots, kept)

    # Idle moments.

    def judge_idle(self, cache: Any, rows: tuple[list[int], int], quiet: bool) -> None:
        """Judge free slots and those in the prefix cache. Raises NotRecognisedError.

        Without `quiet`, requests or sessions hold slots.
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
                name: (self.free_slots(allocator), held[name])
                for name, allocator in self.allocators.items()
            }
            if self.states is not None and NAME in held:
                slots[NAME] = self.states.free, held[NAME]
            self.watcher.idle(slots, locked, rows, self.on_host(cache))

    def free_slots(self, allocator: Any) -> Tensor:
        """Return the free slots of an allocator. A slot in the free list twice occurs twice."""
        parts = [allocator.free_pages]
        for name in ("release_pages", "staged_pages"):
            held = maybe(allocator, name)
            parts += held if isinstance(held, list) else [] if held is None else [held]
        size = int(allocator.page_size) // self.sharing
        return pages(torch.cat([part.long() for part in parts]), size)

    def sizes(self, cache: Any, what: str) -> dict[str, int]:
        """Return, per group, the slots of this rank that a method of a prefix cache counts."""
        sliding = None if self.pool is None else self.pool.sliding
        found, others = {}, "" if sliding is None else "full_"
        for name in (*self.allocators, *([] if self.states is None else [NAME])):
            prefix = {sliding: "swa_", NAME: "mamba_"}.get(name, others)
            count = None
            with suppress(NotImplementedError):
                count = getattr(cache, prefix + what, lambda: None)()
            if isinstance(count, int):
                found[name] = count // (1 if name == NAME else self.sharing)
        return found

    def emptied(self, original: Call) -> None:
        """Report that the cache was flushed, or emptied by a release or by other weights.

        What a flush leaves in files may be read again.
        """
        result = original()
        done = result and not self.files
        if (weights := original.having("flush_cache")) is not None:
            done = weights.flush_cache and result.success
            if self.states is not None:
                self.states.weights += 1
                self.states.compared &= bool(done)  # Else states may be those of other weights.
        elif (released := original.having("tags")) is not None:
            done = "kv_cache" in (released.tags or ("kv_cache",))
        elif result:
            self.flushed(maybe(original.args[0], "tree_cache"))
        if self.watcher is not None and done:
            self.watcher.emptied()


def collects(allocator: Any) -> bool:
    """Return whether an allocator collects slots now, and frees them later."""
    if hasattr(allocator, "is_not_in_free_group"):
        return not allocator.is_not_in_free_group
    return maybe(allocator, "free_group") is not None


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
