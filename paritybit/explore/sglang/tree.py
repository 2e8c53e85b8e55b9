"""Reads the engine's tree and allocator without changing them, and identifies their states."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from paritybit.engines.stubs import PartMissingError
from paritybit.explore.laws import Shadow, Tokens
from paritybit.explore.sglang.scheduler import SglangScheduler, field_of, tokens_of

FULL, SLIDING = 0, 1
SIDES = ("full_attn_allocator", "swa_attn_allocator")
"""The attributes with the allocators of both pools."""

PLAIN = frozenset({bool, int, float, str, type(None)})

FEW = 4
"""The most entries of a dictionary whose values belong to the key."""

UNNAMED = frozenset(
    {
        *("_cache_breakdown_computed", "already_computed", "arrival_processed_tokens"),
        *("cached_tokens", "cached_tokens_device", "num_matched_prefix_tokens", "req_pool_idx"),
        *("retraction_count", "rid", "to_finish"),
    }
)
"""Fields of a request that only serve statistics, its names, and fields that `key` adds."""


@dataclass(frozen=True)
class Node:
    """A node of the tree: the tokens up to its end, and its slots in each pool.

    `sliding` is None for a tombstone, whose sliding slots were freed. `state` has other fields of
    the engine's node, and `mark` is set where a lock of the window ends.
    """

    itself: Any
    tokens: Tokens
    full: list[int]
    sliding: list[int] | None
    state: tuple[Any, ...]
    mark: Any


class Tree:
    """The nodes of a prefix cache, with parents before children, and the orders for eviction.

    `mapping` has the sliding slot of each full slot, or 0, and `free` the free pages of each pool
    in the order of their allocation.
    """

    def __init__(self, cache: Any, allocator: Any) -> None:
        self.core = getattr(cache, "tree_core", cache)
        if not hasattr(self.core, "component_evictable_size_"):
            raise PartMissingError(f"the tree of {type(cache).__name__} is not known")
        self.mapping: list[int] = allocator.full_to_swa_index_mapping.tolist()
        self.free = [free_pages(getattr(allocator, side)) for side in SIDES]
        self.nodes: list[Node] = []
        self.add_below(self.core.root_node, ())

    def add_below(self, parent: Any, tokens: Tokens) -> None:
        """Add the nodes below a node, in the order of their tokens."""
        children = parent.children.values()
        found = [(tuple(one.key.raw_token_ids()[: len(one.key)]), one) for one in children]
        for key, child in sorted(found, key=lambda one: one[0]):
            self.nodes.append(self.node(child, tokens + key))
            self.add_below(child, tokens + key)

    def node(self, node: Any, tokens: Tokens) -> Node:
        """Return the content of a node of the engine."""
        full, sliding = node.component_data[FULL], node.component_data[SLIDING]
        locks = [(one.lock_ref, getattr(one, "session_ref", 0)) for one in (full, sliding)]
        return Node(
            node,
            tokens,
            full.value.tolist() if full.value is not None else [],
            None if sliding.value is None else sliding.value.tolist(),
            (locks, node.priority, node in self.core.evictable_device_leaves),
            sliding.metadata.get("uuid"),
        )

    def orders(self) -> list[list[int]]:
        """Return the indices of nodes in the order of their last access, and in each LRU list."""
        place = {id(node.itself): number for number, node in enumerate(self.nodes)}
        by_access = sorted(self.nodes, key=lambda one: one.itself.last_access_time)
        found = [[place[id(one.itself)] for one in by_access]]
        for listed in self.core.lru_lists.values():
            places, node = list[int](), listed.head.lru_next[listed._pt]
            while node is not listed.tail and node is not None:
                places.append(place.get(id(node), -1))
                node = node.lru_next[listed._pt]
            found.append(places)
        return found

    def sizes(self) -> tuple[int, ...]:
        """Return the engine's evictable and protected sizes of each pool."""
        evictable = self.core.component_evictable_size_
        protected = self.core.component_protected_size_
        return tuple(sizes[kind] for sizes in (evictable, protected) for kind in (FULL, SLIDING))


def free_pages(side: Any) -> list[int]:
    """Return the free pages of a pool in the order of their allocation."""
    held = (side.free_pages, side.release_pages)
    return [page for pages in held if pages is not None for page in pages.tolist()]


@cache
def names_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return those attributes of an engine's objects that belong to the key."""
    return tuple(
        name
        for name in sorted(fields)
        if name not in UNNAMED and not name.endswith("node") and "uuid" not in name
    )


def plain(value: Any) -> Any:
    """Return a plain value, the values of a small dictionary, or Ellipsis for anything else."""
    if type(value) in PLAIN:
        return value
    return list(value.values()) if type(value) is dict and len(value) < FEW else ...


def values_of(holder: Any) -> list[Any]:
    """Return the plain values of an engine's object, in the order of their names."""
    names = vars(holder) if hasattr(holder, "__dict__") else holder.__slots__
    return [plain(getattr(holder, name)) for name in names_of(tuple(names))]


class Key:
    """Numbers the opaque objects of the engine: slots of both pools, nodes, and marks of locks."""

    def __init__(
        self, scheduler: SglangScheduler, tree: Tree, row: Callable[[Any, int], list[int]]
    ) -> None:
        self.scheduler, self.tree, self.row = scheduler, tree, row
        self.size = scheduler.world.bound.page_size
        self.names: tuple[dict[int, int], ...] = {}, {}
        self.marks: dict[Any, int] = {}

    def slots(self, group: int, slots: Iterable[int]) -> list[tuple[int, int]]:
        """Return slots with the numbers of their pages."""
        names, size = self.names[group], self.size
        return [
            (names.setdefault(slot // size, len(names)), slot % size) if slot else (-1, 0)
            for slot in slots
        ]

    def both(self, slots: Iterable[int]) -> list[Any]:
        """Return full slots, and the sliding slots that they are mapped to."""
        kept, mapping = list(slots), self.tree.mapping
        return [self.slots(FULL, kept), self.slots(SLIDING, [mapping[slot] for slot in kept])]

    def mark(self, mark: Any) -> int:
        """Return the number of a lock's mark."""
        return -1 if mark is None else self.marks.setdefault(mark, len(self.marks))

    def node(self, node: Any) -> int:
        """Return the index of a node or of its id."""
        for place, one in enumerate(self.tree.nodes):
            if one.itself is node or one.itself.id == node:
                return place
        return -1

    def free(self) -> list[Any]:
        """Return the free pages in order, and the sliding slots of the free full pages.

        The contents are omitted, because they are written before they are read. The mapping is
        included, because an engine may fail to clear it.
        """
        full, sliding = self.tree.free
        mapped = [
            self.tree.mapping[page * self.size + place]
            for page in full
            for place in range(self.size)
        ]
        return [
            self.slots(FULL, [page * self.size for page in full]),
            self.slots(SLIDING, [page * self.size for page in sliding]),
            self.slots(SLIDING, mapped),
        ]

    def written(self, group: int, shadow: Shadow) -> list[Any]:
        """Return the contents of numbered pages that are not free."""
        size, names, free = self.size, self.names[group], set(self.tree.free[group])
        return sorted(
            (names[slot // size], slot % size, tokens)
            for slot, (_, tokens) in shadow.written.items()
            if slot // size in names and slot // size not in free
        )

    def request(self, request: Any) -> Any:
        """Return the state of a request in the engine and the scheduler."""
        held = field_of(request, "req_pool_idx") is not None
        count = int(field_of(request, "kv_allocated_len")) if held else 0
        lock, kept = getattr(request, "lock", None), getattr(request, "kv", None)
        return (
            tokens_of(request),
            bool(request.to_finish),
            self.both(self.row(request, count) if count else ()),
            values_of(request),
            values_of(kept) if kept is not None else None,
            self.node(request.last_node),
            [self.mark(value) for name, value in vars(request).items() if "uuid" in name],
            None
            if lock is None
            else (
                self.node(lock.node),
                [self.mark(one) for one in lock.receipt.component_lock_uuids.values()],
                lock.swa_released,
            ),
        )

    def whole(self, shadows: tuple[Shadow, ...]) -> Any:
        """Return the key."""
        scheduler, tree = self.scheduler, self.tree
        requests = scheduler.requests()
        nodes = [
            (one.tokens, self.both(one.full), one.sliding is None, one.state, self.mark(one.mark))
            for one in tree.nodes
        ]
        batches = [
            [requests.index(one) for one in batch.reqs if one in requests] if batch else []
            for batch in (scheduler.running, scheduler.last)
        ]
        chunked = scheduler.chunked
        return (
            *(nodes, tree.orders(), tree.sizes(), self.free()),
            [self.request(one) for one in requests],
            [self.written(group, shadow) for group, shadow in enumerate(shadows)],
            *(batches, len(scheduler.waiting), scheduler.stashes),
            requests.index(chunked) if chunked in requests else -1,
        )
