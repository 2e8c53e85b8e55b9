"""Reads the content of the engine's tree and allocator without changing them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paritybit.engines.missing import PartMissingError
from paritybit.explore.laws import Tokens

FULL, SLIDING = 0, 1
SIDES = ("full_attn_allocator", "swa_attn_allocator")
"""The attributes with the allocators of both pools."""


@dataclass(frozen=True)
class Node:
    """A node of the tree: the tokens up to its end, and its slots in each pool.

    `sliding` is None for a tombstone, a node whose sliding slots were freed. `state` has the other
    fields of the engine's node.
    """

    itself: Any
    tokens: Tokens
    full: list[int]
    sliding: list[int] | None
    state: tuple[Any, ...]


class Tree:
    """The nodes of a prefix cache, with parents before children, and the orders for eviction.

    `mapping` has the sliding slot of each full slot, and `free` the free pages of each pool. Both
    trees of the engine are supported: the unified tree, and the older tree for hybrid models.
    """

    def __init__(self, cache: Any, mapping: list[int], free: Sequence[list[int]]) -> None:
        self.core = getattr(cache, "tree_core", cache)
        self.unified = hasattr(self.core, "component_evictable_size_")
        self.mapping, self.free = mapping, free
        if not self.unified and not hasattr(cache, "swa_lru_list"):
            raise PartMissingError(f"the tree of {type(cache).__name__} is not known")
        self.nodes: list[Node] = []
        self.add_below(self.core.root_node, ())
        self.place = {id(node.itself): number for number, node in enumerate(self.nodes)}

    def add_below(self, parent: Any, tokens: Tokens) -> None:
        """Add the nodes below a node, in the order of their tokens."""
        children = parent.children.values()
        found = [(tuple(one.key.raw_token_ids()[: len(one.key)]), one) for one in children]
        if len(found) > 1:
            found.sort(key=lambda one: one[0])
        for key, child in found:
            self.nodes.append(self.node(child, tokens + key))
            self.add_below(child, tokens + key)

    def node(self, node: Any, tokens: Tokens) -> Node:
        """Return the content of a node of the engine."""
        if self.unified:
            full, sliding = node.component_data[FULL], node.component_data[SLIDING]
            locks = [(one.lock_ref, getattr(one, "session_ref", 0)) for one in (full, sliding)]
            return Node(
                node,
                tokens,
                full.value.tolist() if full.value is not None else [],
                None if sliding.value is None else sliding.value.tolist(),
                (locks, node.priority, node in self.core.evictable_device_leaves),
            )
        slots = node.value.tolist()
        return Node(
            node,
            tokens,
            slots,
            None if node.swa_tombstone else [self.mapping[slot] for slot in slots],
            (node.full_lock_ref, node.swa_lock_ref),
        )

    def marks(self) -> list[Any]:
        """Return the mark of each node at which a lock of the window ends, or None."""
        if self.unified:
            return [one.itself.component_data[SLIDING].metadata.get("uuid") for one in self.nodes]
        return [one.itself.swa_uuid for one in self.nodes]

    def orders(self) -> list[list[int]]:
        """Return the indices of nodes in the order of their last access, and in each LRU list."""
        by_access = sorted(self.nodes, key=lambda one: one.itself.last_access_time)
        found = [[self.place[id(one.itself)] for one in by_access]]
        lists = self.core.lru_lists.values() if self.unified else self.older_lists()
        for listed in lists:
            places: list[int] = []
            node = self.after(listed, listed.head)
            while node is not listed.tail and node is not None:
                places.append(self.place.get(id(node), -1))
                node = self.after(listed, node)
            found.append(places)
        return found

    def older_lists(self) -> tuple[Any, Any]:
        """Return the LRU lists of the older tree."""
        return self.core.full_lru_list, self.core.swa_lru_list

    def after(self, listed: Any, node: Any) -> Any:
        """Return the next node in an LRU list."""
        return node.lru_next[listed._pt] if self.unified else getattr(node, listed.nxt)

    def sizes(self) -> tuple[int, ...]:
        """Return the engine's evictable and protected sizes of each pool."""
        core = self.core
        if self.unified:
            evictable, protected = core.component_evictable_size_, core.component_protected_size_
            return tuple(sizes[kind] for sizes in (evictable, protected) for kind in (0, 1))
        return (
            core.full_evictable_size_,
            core.swa_evictable_size_,
            core.full_protected_size_,
            core.swa_protected_size_,
        )


def free_pages(allocator: Any, group: int) -> list[int]:
    """Return the free pages of a pool in the order of their allocation."""
    side = getattr(allocator, SIDES[group])
    held = (side.free_pages, side.release_pages)
    return [page for pages in held if pages is not None for page in pages.tolist()]


def mapping_of(allocator: Any) -> list[int]:
    """Return the sliding slot of each full slot, or 0 if it has none."""
    found: list[int] = allocator.full_to_swa_index_mapping.tolist()
    return found
