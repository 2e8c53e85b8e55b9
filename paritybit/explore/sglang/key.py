"""The key of a state of sglang's prefix cache. States with the same key behave in the same way."""

import marshal
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from paritybit.explore.laws import Shadow
from paritybit.explore.search import REFERENCELESS
from paritybit.explore.sglang.cache import FULL, SLIDING, Tree
from paritybit.explore.sglang.scheduler import Scheduler, record, tokens_of

SCALARS = frozenset({bool, int, float, str, type(None)})
FEW = 4
UNNAMED = frozenset(
    {
        "_cache_breakdown_computed",
        "already_computed",
        "arrival_processed_tokens",
        "cached_tokens",
        "cached_tokens_device",
        "num_matched_prefix_tokens",
        "req_pool_idx",
        "retraction_count",
        "rid",
        "to_finish",
    }
)
"""Fields of a request that only serve statistics, its names, and fields that `Key.whole` adds."""


def plain(value: Any) -> Any:
    """Return the values of a small dictionary, or Ellipsis for any other object."""
    return list(value.values()) if type(value) is dict and len(value) < FEW else ...


@cache
def names_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return those attributes of an engine's objects that belong to the key."""
    return tuple(
        name
        for name in sorted(fields)
        if name not in UNNAMED and not name.endswith("node") and "uuid" not in name
    )


@cache
def marks_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return those attributes of an engine's objects that hold marks of locks."""
    return tuple(name for name in fields if "uuid" in name)


def scalars_of(holder: Any) -> list[Any]:
    """Return the plain values of an engine's object, in the order of their names."""
    fields = vars(holder) if hasattr(holder, "__dict__") else None
    names = names_of(tuple(fields or holder.__slots__))
    values = map(fields.__getitem__, names) if fields else (getattr(holder, one) for one in names)
    return [value if type(value) in SCALARS else plain(value) for value in values]


class Key:
    """Numbers the opaque objects of the engine: slots of both pools, nodes, and marks of locks.

    A key is made after a step. Until the next step, requests only arrive and end. The key therefore
    keeps the tree, the free pages, and the requests of that time.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        shadows: tuple[Shadow, ...],
        row: Callable[[Any, int], list[int]],
        tree: Tree,
    ) -> None:
        self.scheduler, self.row = scheduler, row
        self.tree, self.mapping = tree, tree.mapping
        self.size = scheduler.world.bound.page_size
        self.names: tuple[dict[int, int], ...] = {}, {}
        self.marks: dict[Any, int] = {}
        found: list[Any] = [self.nodes(), tree.orders(), tree.sizes(), self.free()]
        requests = scheduler.requests()
        self.requests = {one.rid: self.request(one) for one in requests}
        found += map(self.written, (FULL, SLIDING), shadows)
        self.fixed = marshal.dumps(found, REFERENCELESS)

    def slots(self, group: int, slots: Iterable[int]) -> list[tuple[int, int]]:
        """Return slots with the numbers of their pages."""
        names, size = self.names[group], self.size
        return [
            (names.setdefault(slot // size, len(names)), slot % size) if slot else (-1, 0)
            for slot in slots
        ]

    def mark(self, mark: Any) -> int:
        """Return the number of a lock's mark."""
        return -1 if mark is None else self.marks.setdefault(mark, len(self.marks))

    def node(self, node: Any) -> int:
        """Return the index of a node. The engine may refer to it by its id."""
        for place, one in enumerate(self.tree.nodes):
            if one.itself is node or one.itself.id == node:
                return place
        return -1

    def nodes(self) -> list[Any]:
        """Return the content of the tree."""
        return [
            (
                node.tokens,
                self.slots(FULL, node.full),
                node.sliding is None,
                self.slots(SLIDING, [self.mapping[slot] for slot in node.full]),
                node.state,
                self.mark(mark),
            )
            for node, mark in zip(self.tree.nodes, self.tree.marks(), strict=True)
        ]

    def free(self) -> list[Any]:
        """Return the free pages in order, and the sliding slots of the free full pages.

        The contents of free pages are omitted, because they are written before they are read. Their
        mapping is included, because an engine may fail to clear it.
        """
        size = self.size
        full, sliding = self.tree.free
        unused = [page * size + place for page in full for place in range(size)]
        return [
            self.slots(FULL, [page * size for page in full]),
            self.slots(SLIDING, [page * size for page in sliding]),
            self.slots(SLIDING, [self.mapping[slot] for slot in unused]),
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
        """Return the state of a request in the engine and the scheduler, except that it ends."""
        row = record(request, "req_pool_idx")
        count = int(record(request, "kv_allocated_len")) if row is not None else 0
        slots = self.row(request, count) if count else []
        lock = getattr(request, "lock", None)
        kept = getattr(request, "kv", None)
        return (
            tokens_of(request),
            self.slots(FULL, slots),
            self.slots(SLIDING, [self.mapping[slot] for slot in slots]),
            scalars_of(request),
            scalars_of(kept) if kept is not None else None,
            self.node(request.last_node),
            [self.mark(getattr(request, name)) for name in marks_of(tuple(vars(request)))],
            None
            if lock is None
            else (
                self.node(lock.node),
                [self.mark(one) for one in lock.receipt.component_lock_uuids.values()],
                lock.swa_released,
            ),
        )

    def whole(self) -> Any:
        """Return the complete key."""
        scheduler, known = self.scheduler, self.requests
        requests = scheduler.requests()
        running = [] if scheduler.running is None else scheduler.running.reqs
        last = [] if scheduler.last is None else scheduler.last.reqs
        return (
            self.fixed,
            [known[one.rid] if one.rid in known else self.request(one) for one in requests],
            [bool(one.to_finish) for one in requests],
            [requests.index(one) for one in running if one in requests],
            [requests.index(one) for one in last if one in requests],
            len(scheduler.waiting),
            requests.index(scheduler.chunked) if scheduler.chunked in requests else -1,
            scheduler.stashes,
        )
