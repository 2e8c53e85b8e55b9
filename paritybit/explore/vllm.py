"""Explores vLLM's KV cache manager: the engine's own classes, with a scheduler loop written here.

`step` follows `Scheduler.schedule` and `update_from_output` (v1/core/sched/scheduler.py, release
0.33.0) for a synchronous engine with first-come scheduling, without drafts and connectors. Running
requests come first, in order. If there are too few blocks, the last running request is preempted
and put at the front of the queue. No request is admitted in a step with a preemption. Other actions
happen between steps: a request arrives, stops or is aborted, and the prefix cache is reset.
"""

import os
from collections.abc import Callable
from typing import Any

from paritybit.engines import fetch
from paritybit.engines.loading import EngineModules
from paritybit.engines.packages import VLLM
from paritybit.engines.stubs import StubFinder
from paritybit.explore.bound import OUTPUT, Bound
from paritybit.explore.laws import Shadow, Tokens, ownership
from paritybit.explore.search import ViolationError
from paritybit.harness.errors import MalformedError

FULL, SLIDING = 0, 1

STUBS = (
    *("aiohttp", "cpuinfo", "diskcache", "flashinfer", "gguf", "huggingface_hub", "llguidance"),
    *("opentelemetry", "prometheus_client", "requests", "safetensors", "transformers", "uvloop"),
    *("vllm.compilation.passes", "vllm.env_override", "vllm.model_executor.layers.fused_moe"),
    *("vllm.models", "vllm.parser", "vllm.reasoning", "xgrammar"),
)
"""Modules that are replaced by stubs."""

ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TRITON_INTERPRET": "1",
    # If it is not set, the engine disables Triton without a driver.
    "CUDA_VISIBLE_DEVICES": "",
}
"""Environment variables that are set before the engine and Triton are imported."""

MODULES = (
    "v1.core.kv_cache_manager",
    "v1.core.kv_cache_utils",
    "v1.kv_cache_interface",
    "v1.request",
    "sampling_params",
    "utils.hashing",
)


def require_room(bound: Bound) -> None:
    """Raise MalformedError if one request might not fit, as the engine rejects such a pool."""
    if bound.keys != 1:
        raise MalformedError("--keys must be 1 with vLLM, whose prefix cache has blocks as keys")
    full = -(-bound.longest // bound.page_size)
    sliding = -(-(bound.window - 1 + bound.budget) // bound.page_size) + 1
    least = full + min(sliding, full) + 1
    if bound.slots < least:
        raise MalformedError(
            f"--slots must be at least {least}: one request may need {least - 1} blocks, and "
            "vLLM keeps one for padding"
        )


def load(found: fetch.EngineFolder) -> dict[str, Any]:
    """Load a release or a source tree. Returns the needed modules by name."""
    os.environ.update(ENVIRONMENT)
    folders = [fetch.dependencies_folder() / name for name in VLLM.dependencies]
    stubs = StubFinder(STUBS)
    engine = EngineModules(VLLM.name, found.package, folders, stubs, front=True)
    return {name.rpartition(".")[2]: engine.module(name) for name in MODULES}


def shared(modules: dict[str, Any]) -> tuple[type, ...]:
    """Return the types of immutable objects."""
    interface = modules["kv_cache_interface"]
    return (
        Bound,
        interface.KVCacheConfig,
        interface.KVCacheGroupSpec,
        interface.KVCacheSpec,
        modules["sampling_params"].SamplingParams,
    )


def machines(modules: dict[str, Any], bound: Bound) -> Callable[[], "VllmMachine"]:
    """Return a function that makes a machine in its initial state."""
    import torch  # noqa: PLC0415

    interface, utils = modules["kv_cache_interface"], modules["kv_cache_utils"]
    common = {
        "block_size": bound.page_size,
        "num_kv_heads": 1,
        "head_size": 8,
        "dtype": torch.float32,
    }
    specs = (
        interface.FullAttentionSpec(**common),
        interface.SlidingWindowSpec(**common, sliding_window=bound.window),
    )
    groups = [
        interface.KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(specs)
    ]
    config = interface.KVCacheConfig(bound.slots, [], groups)
    hash_function = modules["hashing"].sha256
    utils.init_none_hash(hash_function)
    hasher = utils.get_request_block_hasher(bound.page_size, hash_function)
    settings = modules["sampling_params"].SamplingParams(max_tokens=bound.longest)

    def manager() -> Any:
        return modules["kv_cache_manager"].KVCacheManager(
            kv_cache_config=config,
            max_model_len=bound.longest,
            scheduler_block_size=bound.page_size,
            hash_block_size=bound.page_size,
            max_in_flight_tokens=bound.budget,
            enable_caching=True,
        )

    def request(name: str, prompt: Tokens) -> Any:
        return modules["request"].Request(
            name, list(prompt), settings, None, arrival_time=0.0, block_hasher=hasher
        )

    return lambda: VllmMachine(bound, manager(), request, modules["request"].RequestStatus)


class VllmMachine:
    """A KV cache manager, its requests in the order of the scheduler, and the shadow of slots."""

    def __init__(
        self, bound: Bound, manager: Any, request: Callable[[str, Tokens], Any], status: Any
    ) -> None:
        self.bound, self.manager, self.request, self.status = bound, manager, request, status
        self.pool = manager.block_pool
        self.shadow = Shadow()
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.prefixes: dict[bytes, Tokens] = {}
        self.reached: set[str] = set()
        self.arrived = 0

    def actions(self) -> list[str]:
        """Return the actions that the scheduler may perform in this state."""
        found = []
        requests = self.running + self.waiting
        if requests:
            found.append("step")
        if len(requests) < self.bound.requests:
            found += [f"arrive {number}" for number in range(len(self.bound.prompts))]
        found += [f"end {place}" for place in range(len(requests))]
        if self.pool.cached_block_hash_to_block._cache:
            found.append("reset")
        return found

    def act(self, action: str) -> None:
        """Perform an action. Raises ViolationError if a step violates a law."""
        name, _, number = action.partition(" ")
        if name == "step":
            self.step()
        elif name == "arrive":
            self.arrived += 1
            made = self.request(f"r{self.arrived}", self.bound.prompts[int(number)])
            self.waiting.append(made)
        elif name == "end":
            self.end((self.running + self.waiting)[int(number)])
        else:
            self.reset()

    def step(self) -> None:
        """Schedule, compute and sample once, as the engine's scheduler does."""
        kept = [(block, block.block_hash) for block in self.pool.blocks if block.block_hash]
        counts, preempted = self.schedule_running()
        if not preempted:
            self.admit(counts)
        if any(block.block_hash != hashed for block, hashed in kept):
            self.reached.add("evictions")
        for request, count in counts:
            self.write(request, count)
        for request, count in counts:
            self.read(request, count)
        for request, count in counts:
            request.num_computed_tokens += count
            if request.num_computed_tokens == request.num_tokens:
                request.append_output_token_ids(OUTPUT)
                if request.num_tokens >= self.bound.longest:
                    self.end(request)

    def schedule_running(self) -> tuple[list[tuple[Any, int]], bool]:
        """Allocate slots for running requests.

        Returns how many tokens each computes, and whether a request was preempted.
        """
        counts: list[tuple[Any, int]] = []
        budget, preempted, place = self.bound.budget, False, 0
        while place < len(self.running) and budget > 0:
            request = self.running[place]
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            while self.manager.allocate_slots(request, count) is None:
                preempted = True
                last = self.preempt()
                if last is request:
                    return counts, preempted
            counts.append((request, count))
            budget -= count
            place += 1
        return counts, preempted

    def preempt(self) -> Any:
        """Preempt the last running request, and put it at the front of the queue."""
        self.reached.add("preemptions")
        request = self.running.pop()
        self.manager.free(request)
        request.status = self.status.PREEMPTED
        request.num_computed_tokens = 0
        self.waiting.insert(0, request)
        return request

    def admit(self, counts: list[tuple[Any, int]]) -> None:
        """Admit waiting requests in order, until one does not fit."""
        budget = self.bound.budget - sum(count for _, count in counts)
        while self.waiting and budget > 0:
            request = self.waiting[0]
            blocks, hit, request.shared_prefix_boundary = self.manager.get_computed_blocks(request)
            if hit:
                self.reached.add("shared prefixes")
            count = min(request.num_tokens - hit, budget)
            given = self.manager.allocate_slots(
                request,
                count,
                num_new_computed_tokens=hit,
                new_computed_blocks=blocks,
                full_sequence_must_fit=True,
                has_scheduled_reqs=bool(self.running),
            )
            if given is None:
                return
            self.running.append(self.waiting.pop(0))
            request.status, request.num_computed_tokens = self.status.RUNNING, hit
            counts.append((request, count))
            budget -= count

    def end(self, request: Any) -> None:
        """Free a request that stopped or was aborted."""
        self.manager.free(request)
        (self.running if request in self.running else self.waiting).remove(request)

    def reset(self) -> None:
        """Reset the prefix cache, as for new weights. All running requests are preempted first."""
        while self.running:
            self.preempt()
        if not self.manager.reset_prefix_cache():
            raise ViolationError("leak: the prefix cache cannot be reset although nothing runs")
        self.reached.add("resets")

    def tables(self, request: Any) -> tuple[list[Any], ...]:
        """Return the blocks of a request, per group."""
        found: tuple[list[Any], ...] = self.manager.coordinator.get_blocks(request.request_id)
        return found

    def slots(self, request: Any, group: int, first: int, last: int) -> list[int | None]:
        """Return the slots of positions of a request, or None for positions without a slot."""
        size = self.bound.page_size
        table: list[Any] = self.tables(request)[group]
        found: list[int | None] = []
        for position in range(first, last):
            block: Any = table[position // size] if position // size < len(table) else None
            missing = block is None or block.is_null
            found.append(None if missing else block.block_id * size + position % size)
        return found

    def write(self, request: Any, count: int) -> None:
        """Record writes to the slots of the tokens that are computed now."""
        begin, tokens = request.num_computed_tokens, tuple(request.all_token_ids)
        for group in (FULL, SLIDING):
            places = self.slots(request, group, begin, begin + count)
            for position, slot in enumerate(places, begin):
                if slot is None:
                    raise ViolationError(
                        f"unwritten slot: position {position} of {request.request_id} has no slot "
                        f"in group {group}"
                    )
                self.shadow.write(group, slot, tokens[: position + 1])
        size = self.bound.page_size
        for number, hashed in enumerate(request.block_hashes, 1):
            self.prefixes[hashed] = tokens[: number * size]

    def read(self, request: Any, count: int) -> None:
        """Check the slots that the queries of this step read."""
        begin, tokens = request.num_computed_tokens, tuple(request.all_token_ids)
        end = begin + count
        for group in (FULL, SLIDING):
            first = 0 if group == FULL else max(0, begin - self.bound.window + 1)
            if any(block.is_null for block in self.tables(request)[group]):
                self.reached.add("tombstones")
            slots = self.slots(request, group, first, end)
            self.shadow.read(group, slots, tokens[:end], request.request_id)

    def free_blocks(self) -> list[int]:
        """Return the free blocks in the order of their allocation."""
        queue, found = self.pool.free_block_queue, []
        block = queue.fake_free_list_head.next_free_block
        while block is not queue.fake_free_list_tail:
            if block is None:
                raise ViolationError("leak: the free list ends before its last block")
            found.append(block.block_id)
            if len(found) > len(self.pool.blocks):
                raise ViolationError("double free: the free list has a cycle")
            block = block.next_free_block
        if len(found) != self.pool.get_num_free_blocks():
            raise ViolationError(
                f"wrong count: {self.pool.get_num_free_blocks()} blocks count as free, and "
                f"{len(found)} are in the free list"
            )
        return found

    def check(self) -> None:
        """Check the holders of all blocks, and the content of the prefix cache."""
        holders: dict[int, list[str]] = {}
        for request in self.running:
            for table in self.tables(request):
                for block in table:
                    if not block.is_null:
                        holders.setdefault(block.block_id, []).append(request.request_id)
        blocks = [block for block in self.pool.blocks if not block.is_null]
        counts = {block.block_id: block.ref_cnt for block in blocks}
        ownership(self.free_blocks(), holders, counts, counts=counts)
        kept = self.pool.cached_block_hash_to_block
        size = self.bound.page_size
        for key, held in kept._cache.items():
            digest, group = key[:-4], int.from_bytes(key[-4:], "big")
            for block in held.values() if isinstance(held, dict) else [held]:
                first = block.block_id * size
                self.shadow.cached(group, range(first, first + size), self.prefixes[digest])

    def key(self) -> Any:
        """Return the state. Blocks are numbered by first occurrence.

        The key omits the contents of blocks that are free and not cached, because such a block is
        written before it is read again, which `check` and `read` verify. It also omits the names of
        requests, and has the tokens of a prefix in place of its hash.
        """
        names: dict[int, int] = {}

        def name(block: Any) -> int:
            return -1 if block.is_null else names.setdefault(block.block_id, len(names))

        managers = self.manager.coordinator.single_type_managers
        requests = [
            (
                tuple(request.all_token_ids),
                request.num_prompt_tokens,
                request.num_computed_tokens,
                int(request.status),
                request.shared_prefix_boundary,
                [manager.num_cached_block.get(request.request_id) for manager in managers],
                [[name(block) for block in table] for table in self.tables(request)],
            )
            for request in (*self.running, *self.waiting)
        ]
        free = [name(self.pool.blocks[number]) for number in self.free_blocks()]
        cached = [
            (
                self.prefixes[key[:-4]],
                key[-4:],
                [name(one) for one in (held.values() if isinstance(held, dict) else [held])],
            )
            for key, held in self.pool.cached_block_hash_to_block._cache.items()
        ]
        size = self.bound.page_size
        live = {number for number in names if self.pool.blocks[number].ref_cnt > 0}
        written = sorted(
            (names[slot // size], slot % size, group, tokens)
            for slot, (group, tokens) in self.shadow.written.items()
            if slot // size in live
        )
        return len(self.running), requests, free, sorted(cached), written
