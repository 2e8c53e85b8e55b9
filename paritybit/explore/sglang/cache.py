"""What the engine's tree, allocator and request table hold, read without changing them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paritybit.engines.missing import PartMissingError
from paritybit.explore.laws import Tokens

FULL, SLIDING = 0, 1
SIDES = ("full_attn_allocator", "swa_attn_allocator")
"""The engine's allocators of both pools."""


@dataclass(frozen=True)
class Node:
    """A node of the tree: the tokens up to its end, and its slots, per pool.

    `sliding` is None for a tombstone: the node's sliding slots were freed. `state` is what else
    the engine notes of it.
    """

    itself: Any
    tokens: Tokens
    full: list[int]
    sliding: list[int] | None
    state: tuple[Any, ...]


class Tree:
    """The nodes of a prefix cache, each before those below it, and the orders that eviction uses.

    `mapping` and `free` are what the allocator holds: the sliding slot of each full slot, and the
    free pages of each pool. Both of the engine's trees are known: the unified one, and the older
    one of hybrid models.
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
        """Add the nodes below one, in the order of their tokens."""
        children = parent.children.values()
        found = [(tuple(one.key.raw_token_ids()[: len(one.key)]), one) for one in children]
        if len(found) > 1:
            found.sort(key=lambda one: one[0])
        for key, child in found:
            self.nodes.append(self.node(child, tokens + key))
            self.add_below(child, tokens + key)

    def node(self, node: Any, tokens: Tokens) -> Node:
        """Return what a node holds."""
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
        """Return the mark at which a lock of the window ends, per node; None where none does."""
        if self.unified:
            return [one.itself.component_data[SLIDING].metadata.get("uuid") for one in self.nodes]
        return [one.itself.swa_uuid for one in self.nodes]

    def orders(self) -> list[list[int]]:
        """Return the places of nodes in the order of their last access and in each LRU list."""
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
        """Return the node after one in an LRU list."""
        return node.lru_next[listed._pt] if self.unified else getattr(node, listed.nxt)

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes that the engine keeps account of, by pool: evictable and protected."""
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
    """Return the free pages of a pool in the order in which they are handed out."""
    side = getattr(allocator, SIDES[group])
    held = (side.free_pages, side.release_pages)
    return [page for pages in held if pages is not None for page in pages.tolist()]


def mapping_of(allocator: Any) -> list[int]:
    """Return the sliding slot of each full slot; 0 where it has none."""
    found: list[int] = allocator.full_to_swa_index_mapping.tolist()
    return found
