"""What stands for a state of sglang's prefix cache: two states with the same key go on alike."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from paritybit.explore.laws import Shadow
from paritybit.explore.sglang.cache import FULL, SLIDING, Tree, free_pages
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
    }
)
"""What a request notes for statistics alone, and its names."""


def plain(value: Any) -> Any:
    """Return the values of a small dictionary, and a mark for anything else that is not plain."""
    return list(value.values()) if type(value) is dict and len(value) < FEW else ...


@cache
def names_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return the attributes of an engine's objects that count, by type and all attributes."""
    return tuple(
        name
        for name in sorted(fields)
        if name not in UNNAMED and not name.endswith("node") and "uuid" not in name
    )


@cache
def marks_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return the attributes of an engine's objects that hold marks of locks."""
    return tuple(name for name in fields if "uuid" in name)


def scalars_of(holder: Any) -> list[Any]:
    """Return what plain values an engine's object has, in the order of their names."""
    fields = vars(holder) if hasattr(holder, "__dict__") else None
    names = names_of(tuple(fields or holder.__slots__))
    values = map(fields.__getitem__, names) if fields else (getattr(holder, one) for one in names)
    return [value if type(value) in SCALARS else plain(value) for value in values]


class Key:
    """Names what the engine treats as opaque: slots of both pools, nodes, and marks of locks."""

    def __init__(
        self,
        scheduler: Scheduler,
        shadows: tuple[Shadow, ...],
        row: Callable[[Any, int], list[int]],
        tree: Tree,
    ) -> None:
        self.scheduler, self.shadows, self.row = scheduler, shadows, row
        self.tree, self.mapping = tree, tree.mapping
        self.size = scheduler.world.bound.page_size
        self.names: tuple[dict[int, int], ...] = {}, {}
        self.marks: dict[Any, int] = {}

    def slots(self, group: int, slots: Iterable[int]) -> list[tuple[int, int]]:
        """Return slots by the names of their pages."""
        names, size = self.names[group], self.size
        return [
            (names.setdefault(slot // size, len(names)), slot % size) if slot else (-1, 0)
            for slot in slots
        ]

    def mark(self, mark: Any) -> int:
        """Return the name of a mark of a lock."""
        return -1 if mark is None else self.marks.setdefault(mark, len(self.marks))

    def node(self, node: Any) -> int:
        """Return the place of a node, of which an engine may hold the number alone."""
        for place, one in enumerate(self.tree.nodes):
            if one.itself is node or one.itself.id == node:
                return place
        return -1

    def request(self, request: Any) -> Any:
        """Return what the engine and the scheduler know of a request."""
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
            bool(request.to_finish),
        )

    def whole(self) -> Any:
        """Return all of it.

        What free pages hold is left out, because they are written before they are read. What they
        are mapped to is not: an engine may forget to clear it.
        """
        scheduler, tree = self.scheduler, self.tree
        requests = scheduler.requests()
        running = [] if scheduler.running is None else scheduler.running.reqs
        last = [] if scheduler.last is None else scheduler.last.reqs
        found: list[Any] = [
            [self.request(one) for one in requests],
            [requests.index(one) for one in running if one in requests],
            [requests.index(one) for one in last if one in requests],
            len(scheduler.waiting),
            requests.index(scheduler.chunked) if scheduler.chunked in requests else -1,
            scheduler.stashes,
        ]
        for node, mark in zip(tree.nodes, tree.marks(), strict=True):
            full = self.slots(FULL, node.full)
            sliding = node.sliding and self.slots(SLIDING, node.sliding)
            found.append((node.tokens, full, sliding, node.state, self.mark(mark)))
        found.append((tree.orders(), tree.sizes()))
        live = [set(names) for names in self.names]
        for group in (FULL, SLIDING):
            free = free_pages(scheduler.allocator, group)
            live[group] -= set(free)
            found.append([name for name, _ in self.slots(group, [one * self.size for one in free])])
            written = self.shadows[group].written
            found.append(
                sorted(
                    (self.names[group][slot // self.size], slot % self.size, tokens)
                    for slot, (_, tokens) in written.items()
                    if slot // self.size in live[group]
                )
            )
        pages = free_pages(scheduler.allocator, FULL)
        unused = [page * self.size + place for page in pages for place in range(self.size)]
        found.append(self.slots(SLIDING, [self.mapping[slot] for slot in unused]))
        return found
