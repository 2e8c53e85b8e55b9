"""The states of sglang's allocator and prefix cache: actions, laws, and what stands for a state."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from paritybit.explore.bound import Bound
from paritybit.explore.laws import Shadow, Tokens
from paritybit.explore.search import ViolationError
from paritybit.explore.sglang.cache import FULL, SLIDING, Tree, free_pages, mapping_of
from paritybit.explore.sglang.scheduler import Computed, Scheduler, record
from paritybit.explore.sglang.world import World
from paritybit.subjects.engines.shared.bags import Bag
from paritybit.subjects.engines.shared.loading import Engine

POOLS = ("full", "sliding")
SCALARS = (bool, int, float, str, type(None))
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


def machines(engine: Engine, bound: Bound) -> Callable[[], "SglangMachine"]:
    """Return what makes a machine in its first state."""
    world = World(engine, bound)
    return lambda: SglangMachine(world)


def shared(engine: Engine) -> tuple[type, ...]:
    """Return the types of objects that never change."""
    return (
        Bag,
        Bound,
        World,
        engine.part("srt.mem_cache.memory_pool:MHATokenToKVPool"),
        engine.part("srt.sampling.sampling_params:SamplingParams"),
    )


class SglangMachine:
    """A scheduler over the engine's own objects, and the shadow of the slots of both pools."""

    def __init__(self, world: World) -> None:
        self.world, self.bound = world, world.bound
        self.scheduler = Scheduler(world)
        self.shadows = Shadow(), Shadow()
        self.reached: set[str] = set()
        self.arrived = 0

    def actions(self) -> list[str]:
        """Return the actions that the scheduler may perform in this state."""
        requests = self.scheduler.requests()
        found = ["step"] if requests else []
        if len(requests) < self.bound.requests:
            found += [f"arrive {number}" for number in range(len(self.bound.prompts))]
        found += [
            f"end {place}"
            for place, one in enumerate(requests)
            if one is not self.scheduler.chunked and not one.to_finish
        ]
        if not requests and self.tree().nodes:
            found.append("reset")
        return found

    def act(self, action: str) -> None:
        """Perform an action. Raises ViolationError if a step reads what is not its own."""
        name, _, number = action.partition(" ")
        try:
            if name == "step":
                self.step()
            elif name == "arrive":
                self.arrived += 1
                prompt = self.bound.prompts[int(number)]
                self.scheduler.waiting.append(self.world.request(f"r{self.arrived}", prompt))
            elif name == "end":
                self.scheduler.stop(self.scheduler.requests()[int(number)])
            else:
                self.scheduler.reset()
                self.reached.add("resets")
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            said = " ".join(str(error).split())
            raise ViolationError(f"engine error: {type(error).__name__}: {said}") from error

    def step(self) -> None:
        """Perform a step of the scheduler, and note what it brought about."""
        kept = {slot for node in self.tree().nodes for slot in node.full}
        retracted = self.scheduler.retracted
        self.scheduler.step(self.compute)
        tree = self.tree()
        if kept - {slot for node in tree.nodes for slot in node.full}:
            self.reached.add("evictions")
        if any(node.sliding is None for node in tree.nodes):
            self.reached.add("tombstones")
        if self.scheduler.retracted > retracted:
            self.reached.add("preemptions")
        if self.scheduler.shared:
            self.reached.add("shared prefixes")

    def compute(self, parts: list[Computed]) -> None:
        """Write the slots of all tokens that are computed in a step, then read what they see."""
        mapping = mapping_of(self.scheduler.allocator)
        for part in parts:
            tokens, row = tokens_of(part.request), self.row(part.request, part.end)
            for position in range(part.begin, part.end):
                sliding = mapping[row[position]]
                if not row[position] or not sliding:
                    raise ViolationError(
                        f"unwritten slot: position {position} of {part.request.rid} has no slot"
                    )
                self.shadows[FULL].write(FULL, row[position], tokens[: position + 1])
                self.shadows[SLIDING].write(SLIDING, sliding, tokens[: position + 1])
        for part in parts:
            self.read(part.request, part.begin, part.end, mapping)

    def row(self, request: Any, end: int) -> list[int]:
        """Return the full slots of a request's first tokens."""
        row = record(request, "req_pool_idx")
        found: list[int] = self.scheduler.table.req_to_token[int(row), :end].tolist()
        return found

    def read(self, request: Any, begin: int, end: int, mapping: list[int]) -> None:
        """Check what the queries from `begin` up to `end` see: a window and themselves."""
        tokens, row = tokens_of(request)[:end], self.row(request, end)
        first = max(0, begin - self.bound.window)
        seen = [mapping[slot] or None for slot in row[first:]]
        self.shadows[FULL].read(FULL, row, tokens, request.rid)
        self.shadows[SLIDING].read(SLIDING, seen, tokens, request.rid)

    def tree(self) -> Tree:
        """Return the nodes of the prefix cache."""
        return Tree(self.scheduler.cache, mapping_of(self.scheduler.allocator))

    def holding(self) -> list[Any]:
        """Return the requests that hold slots."""
        return [one for one in self.scheduler.requests() if record(one, "req_pool_idx") is not None]

    def check(self) -> None:
        """Check who holds which slots, what the cache keeps, and what the next queries see."""
        mapping = mapping_of(self.scheduler.allocator)
        tree = Tree(self.scheduler.cache, mapping)
        for request in self.holding():
            computed = int(record(request, "kv_committed_len"))
            self.read(request, computed, computed, mapping)
        self.check_tree(tree, mapping)
        for group, owners in enumerate(self.owners(tree, mapping)):
            self.check_pages(group, owners)
        sizes = tree.sizes()
        kept = (
            sum(len(node.full) for node in tree.nodes),
            sum(len(node.sliding or ()) for node in tree.nodes),
        )
        for group, name in enumerate(POOLS):
            if sizes[group] + sizes[group + 2] != kept[group]:
                raise ViolationError(
                    f"wrong count: {sizes[group]} evictable and {sizes[group + 2]} locked slots of "
                    f"the {name} pool, but the prefix cache keeps {kept[group]}"
                )
            if sizes[group + 2] and self.scheduler.idle():
                raise ViolationError(
                    f"leak: {sizes[group + 2]} slots of the {name} pool are locked, and no "
                    "request is left"
                )

    def check_tree(self, tree: Tree, mapping: list[int]) -> None:
        """Check that each cached slot holds the tokens for which it is kept."""
        for node in tree.nodes:
            self.shadows[FULL].cached(FULL, node.full, node.tokens)
            if node.sliding is None:
                continue
            self.shadows[SLIDING].cached(SLIDING, node.sliding, node.tokens)
            found = [mapping[slot] for slot in node.full]
            if found != node.sliding:
                raise ViolationError(
                    f"wrong list: the prefix cache keeps the sliding slots {node.sliding}, and a "
                    f"request that reuses them reads {found}"
                )

    def owners(self, tree: Tree, mapping: list[int]) -> tuple[dict[int, list[str]], ...]:
        """Return who gives back each page, per pool: a node of the cache, or one request."""
        size = self.bound.page_size
        found: tuple[dict[int, list[str]], ...] = {}, {}

        def own(group: int, slots: Iterable[int], who: str) -> None:
            for page in {slot // size for slot in slots if slot >= size}:
                found[group].setdefault(page, []).append(who)

        for node in tree.nodes:
            own(FULL, node.full, "the prefix cache")
            own(SLIDING, node.sliding or (), "the prefix cache")
        for request in self.holding():
            first = int(record(request, "cache_protected_len"))
            row = self.row(request, int(record(request, "kv_allocated_len")))[first:]
            own(FULL, row, request.rid)
            own(SLIDING, [mapping[slot] for slot in row], request.rid)
        return found

    def check_pages(self, group: int, owners: dict[int, list[str]]) -> None:
        """Check that each page of a pool is free, once, or has one owner."""
        free, name = free_pages(self.scheduler.allocator, group), POOLS[group]
        if len(set(free)) < len(free):
            raise ViolationError(f"double free: a page of the {name} pool is free twice: {free}")
        last = self.bound.slots if group == FULL else self.world.sliding
        for page in range(1, last + 1):
            who = owners.get(page, [])
            if page in free and who:
                raise ViolationError(
                    f"freed in use: page {page} of the {name} pool is free, and {who[0]} holds it"
                )
            if page not in free and not who:
                raise ViolationError(
                    f"leak: page {page} of the {name} pool is neither free nor held"
                )
            if len(who) > 1:
                raise ViolationError(
                    f"wrong owner: page {page} of the {name} pool is given back by both "
                    f"{who[0]} and {who[1]}"
                )

    def key(self) -> Hashable:
        """Return the state, with slots, nodes and marks named in the order in which they occur."""
        return Key(self).whole()


def tokens_of(request: Any) -> Tokens:
    """Return a request's prompt and output."""
    return (*request.origin_input_ids, *request.output_ids)


def scalars_of(holder: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an engine's object that are plain values, but for names of nodes."""
    fields = vars(holder) if hasattr(holder, "__dict__") else holder.__slots__
    found = [(name, getattr(holder, name)) for name in sorted(fields)]
    return [
        (name, value)
        for name, value in found
        if (isinstance(value, SCALARS) or name == "component_evicted_seqlens")
        and name not in UNNAMED
        and not name.endswith("node")
        and "uuid" not in name
    ]


class Key:
    """Names what the engine treats as opaque: slots of both pools, nodes, and marks of locks."""

    def __init__(self, machine: SglangMachine) -> None:
        self.machine, self.scheduler = machine, machine.scheduler
        self.mapping = mapping_of(self.scheduler.allocator)
        self.tree = Tree(self.scheduler.cache, self.mapping)
        self.size = machine.bound.page_size
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

    def request(self, request: Any) -> Hashable:
        """Return what the engine and the scheduler know of a request."""
        row = record(request, "req_pool_idx")
        count = int(record(request, "kv_allocated_len")) if row is not None else 0
        slots = self.machine.row(request, count) if count else []
        lock = getattr(request, "lock", None)
        kept = getattr(request, "kv", None)
        return repr(
            (
                tokens_of(request),
                self.slots(FULL, slots),
                self.slots(SLIDING, [self.mapping[slot] for slot in slots]),
                scalars_of(request),
                scalars_of(kept) if kept is not None else None,
                self.node(request.last_node),
                [self.mark(value) for name, value in vars(request).items() if "uuid" in name],
                None
                if lock is None
                else (
                    self.node(lock.node),
                    [self.mark(one) for one in lock.receipt.component_lock_uuids.values()],
                    lock.swa_released,
                ),
                bool(request.to_finish),
            )
        )

    def whole(self) -> Hashable:
        """Return all of it. What free pages hold is left out: they are written before a read."""
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
            written = self.machine.shadows[group].written
            found.append(
                sorted(
                    (self.names[group][slot // self.size], slot % self.size, tokens)
                    for slot, (_, tokens) in written.items()
                    if slot // self.size in live[group]
                )
            )
        return repr(found)
