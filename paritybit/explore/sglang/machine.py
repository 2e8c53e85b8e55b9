"""The machine of sglang's allocator and prefix cache: its actions and laws."""

from collections.abc import Callable, Iterable
from typing import Any

from paritybit.engines.loading import EngineModules
from paritybit.engines.stubs import Bag
from paritybit.explore.bound import Bound
from paritybit.explore.laws import Shadow, ownership
from paritybit.explore.search import ViolationError
from paritybit.explore.sglang.scheduler import Computed, SglangScheduler, field_of, tokens_of
from paritybit.explore.sglang.tree import FULL, SLIDING, Key, Tree
from paritybit.explore.sglang.world import World, sliding_pages

POOLS = ("full", "sliding")
QUIET = ("arrive", "end")
"""Actions that do not call the engine's allocator and prefix cache."""


def machines(engine: EngineModules, bound: Bound) -> Callable[[], "SglangMachine"]:
    """Return a function that makes a machine in its initial state."""
    world = World(engine, bound)
    return lambda: SglangMachine(world)


def shared(engine: EngineModules) -> tuple[type, ...]:
    """Return the types of immutable objects."""
    return (
        Bag,
        Bound,
        World,
        engine.part("srt.mem_cache.memory_pool:MHATokenToKVPool"),
        engine.part("srt.sampling.sampling_params:SamplingParams"),
    )


class SglangMachine(SglangScheduler):
    """A scheduler with actions and laws, and the shadow of the slots of both pools."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.bound = world.bound
        self.shadows = Shadow(), Shadow()
        self.arrived = 0
        self.action = ""
        self.kept: frozenset[int] = frozenset()
        self.held = Tree(self.cache, self.allocator)

    def actions(self) -> list[str]:
        """Return the actions that the scheduler may perform in this state."""
        requests = self.requests()
        found = []
        if len(requests) < self.bound.requests:
            found += [f"arrive {number}" for number in range(len(self.bound.prompts))]
        found += [
            f"end {place}"
            for place, one in enumerate(requests)
            if one is not self.chunked and not one.to_finish
        ]
        if requests:
            found.append("step")
        elif self.kept:
            found.append("reset")
        return found

    def act(self, action: str) -> None:
        """Perform an action. Requests that arrive and end reach the engine with the next step."""
        import torch  # noqa: PLC0415

        name, _, number = action.partition(" ")
        self.action = name
        if name == "arrive":
            self.arrived += 1
            prompt = self.bound.prompts[int(number)]
            self.waiting.append(self.world.request(f"r{self.arrived}", prompt))
            return
        if name == "end":
            self.stop(self.requests()[int(number)])
            return
        # sglang's loop uses `no_grad`. Inference mode is faster, as it has no version counters.
        with torch.inference_mode():
            self.step() if name == "step" else self.reset()
        self.held = Tree(self.cache, self.allocator)

    def compute(self, parts: list[Computed]) -> None:
        """Record writes to the slots of all tokens of a step, then check the reads."""
        mapping: list[int] = self.allocator.full_to_swa_index_mapping.tolist()
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
        row = field_of(request, "req_pool_idx")
        found: list[int] = self.table.req_to_token[int(row), :end].tolist()
        last = (self.bound.slots + 1) * self.bound.page_size
        for position, slot in enumerate(found):
            if not 0 <= slot < last:
                raise ViolationError(
                    f"wrong list: position {position} of {request.rid} has the slot {slot}, which "
                    "is not in the pool"
                )
        return found

    def read(self, request: Any, begin: int, end: int, mapping: list[int]) -> None:
        """Check the slots that the queries from `begin` to `end` - 1 read."""
        tokens, row = tokens_of(request)[:end], self.row(request, end)
        first = max(0, begin - self.bound.window)
        seen = [mapping[slot] or None for slot in row[first:]]
        self.shadows[FULL].read(FULL, row, tokens, request.rid)
        self.shadows[SLIDING].read(SLIDING, seen, tokens, request.rid)

    def holding(self) -> list[Any]:
        """Return the requests that hold slots."""
        return [one for one in self.requests() if field_of(one, "req_pool_idx") is not None]

    def check(self) -> None:
        """Check the holders of slots, the content of the cache, and the next queries' reads."""
        if self.action in QUIET and not self.idle():
            return  # The engine was not called, so nothing has changed.
        tree = self.held
        kept = frozenset(slot for node in tree.nodes for slot in node.full)
        if self.action == "step" and self.kept - kept:
            self.reached.add("evictions")
        if any(node.sliding is None for node in tree.nodes):
            self.reached.add("tombstones")
        self.kept = kept
        for request in self.holding():
            computed = int(field_of(request, "kv_committed_len"))
            self.read(request, computed, computed, tree.mapping)
            self.check_free(request, computed)
        self.check_tree()
        for group, owners in enumerate(self.owners()):
            last = self.bound.slots if group == FULL else sliding_pages(self.bound)
            ownership(tree.free[group], owners, range(1, last + 1), f" of the {POOLS[group]} pool")
        sizes = tree.sizes()
        sums = (
            sum(len(node.full) for node in tree.nodes),
            sum(len(node.sliding or ()) for node in tree.nodes),
        )
        for group, name in enumerate(POOLS):
            if sizes[group] + sizes[group + 2] != sums[group]:
                raise ViolationError(
                    f"wrong count: {sizes[group]} evictable and {sizes[group + 2]} locked slots of "
                    f"the {name} pool, but the prefix cache keeps {sums[group]}"
                )
            if sizes[group + 2] and self.idle():
                raise ViolationError(
                    f"leak: {sizes[group + 2]} slots of the {name} pool are locked, and no "
                    "request is left"
                )

    def check_free(self, request: Any, computed: int) -> None:
        """Check that no slot that the next query reads is free."""
        row, size, tree = self.row(request, computed), self.bound.page_size, self.held
        sliding = [tree.mapping[slot] for slot in row[max(0, computed - self.bound.window) :]]
        for group, slots in enumerate((row, sliding)):
            free = tree.free[group]
            for slot in slots:
                if slot // size in free:
                    raise ViolationError(
                        f"freed in use: page {slot // size} of the {POOLS[group]} pool is free, "
                        f"and {request.rid} reads it"
                    )

    def check_tree(self) -> None:
        """Check that each cached slot holds the tokens for which it is kept."""
        for node in self.held.nodes:
            self.shadows[FULL].cached(FULL, node.full, node.tokens)
            if node.sliding is None:
                continue
            self.shadows[SLIDING].cached(SLIDING, node.sliding, node.tokens)
            found = [self.held.mapping[slot] for slot in node.full]
            if found != node.sliding:
                raise ViolationError(
                    f"wrong list: the prefix cache keeps the sliding slots {node.sliding}, and a "
                    f"request that reuses them reads {found}"
                )

    def owners(self) -> tuple[dict[int, list[str]], ...]:
        """Return the owners that will free each page, per pool: the cache or requests."""
        size, tree = self.bound.page_size, self.held
        found: tuple[dict[int, list[str]], ...] = {}, {}

        def own(group: int, slots: Iterable[int], who: str) -> None:
            for page in {slot // size for slot in slots if slot >= size}:
                found[group].setdefault(page, []).append(who)

        for node in tree.nodes:
            own(FULL, node.full, "the prefix cache")
            own(SLIDING, node.sliding or (), "the prefix cache")
        for request in self.holding():
            first = int(field_of(request, "cache_protected_len"))
            row = self.row(request, int(field_of(request, "kv_allocated_len")))[first:]
            own(FULL, row, request.rid)
            own(SLIDING, [tree.mapping[slot] for slot in row], request.rid)
        return found

    def key(self) -> Any:
        """Return the state, with opaque numbers renamed by first occurrence."""
        return Key(self, self.held, self.row).whole(self.shadows)
