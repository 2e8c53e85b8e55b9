"""Tells the workers of an engine what only its scheduler knows, in whichever process each is.

A message is an attribute of the scheduler's output, which the engine itself sends to its workers.
It has values of Python and the engine only, as a worker may not have paritybit:

- `requests`: per request that begins, its FACTS. `tokens`: per other request of the forward, the
  tokens from some position on.
- `events`: what happened to blocks since the last message, in order. Each is a method of `Blocks`,
  and its arguments.
- `step`: the name of the forward, with which `events` say that the engine has its result.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from paritybit.connectors.following import HOST, Content, Following, content_of
from paritybit.connectors.hooking import Call, maybe
from paritybit.watch.stacks import stack
from paritybit.watch.weak import Weakly

SIMPLE = "simple host"
"""The name of the pool of the simple connector."""

FILED = "ExampleConnector"
"""The connector that keeps KV in files, and stores it while a forward computes it."""

CACHED = "LMCacheConnectorV1"
"""The connector of LMCache, which keeps KV when the prefix cache is emptied."""

PULLED = "NixlConnector"
"""The connector by which an engine for decode reads the KV of one for prefill."""

MESSAGE = "paritybit"
"""The name of the attribute."""

FACTS = "all_token_ids", "num_prompt_tokens", "cache_salt", "lora_request", "sampling_params"
"""What is told of a request, by the names of its attributes. `contents` of its images follow."""

Message = dict[str, Any]


class Scheduling(Following):
    """The part of an engine that follows its scheduler, if it is in this process."""

    inner = "/block_pool.py", "/kv_cache_utils.py", "/kv_offload/cpu/manager.py"
    scheduler: Any = Weakly()

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.follow_scheduler(None)
        self.journal.watchers[self] = None

    def follow_scheduler(self, scheduler: Any) -> None:
        """Follow a scheduler from now on."""
        self.scheduler = scheduler
        self.told = dict[str, int]()
        """The number of tokens of each request that workers know."""
        self.events = list[tuple[Any, ...]]()
        self.told_steps = 0

    def schedule(self, original: Call, scheduler: Any) -> None:
        """Add a message to the scheduler's output."""
        if self.scheduler is not scheduler:
            self.follow_scheduler(scheduler)
        output = original()
        setattr(output, MESSAGE, self.message(output))

    def message(self, output: Any) -> Message:
        """Return what workers do not know yet."""
        for name in output.finished_req_ids:
            self.told.pop(name, None)
        new = {one.req_id for one in output.scheduled_new_reqs}
        requests, tokens = dict[str, tuple[Any, ...]](), dict[str, tuple[int, list[int]]]()
        for name in output.num_scheduled_tokens:
            request = self.scheduler.requests[name]
            known, size = self.told.get(name), len(request.all_token_ids)
            if known is None or name in new or known > size:
                others = (maybe(request, fact) for fact in FACTS[1:])
                facts = (list(request.all_token_ids), *others, [*contents_of(request)])
                requests[name] = facts
            elif known < size:
                tokens[name] = known, list(request.all_token_ids[known:])
            self.told[name] = size
        events, self.events = self.events, []
        self.told_steps += 1
        step = f"step {self.told_steps}"
        return {"requests": requests, "tokens": tokens, "events": events, "step": step}

    def updates(self, scheduler: Any, scheduler_output: Any) -> None:
        """Note that the engine has the result of a forward."""
        if (message := maybe(scheduler_output, MESSAGE)) is not None:
            self.events.append(("over", [message["step"]]))

    # What happens to blocks.

    def frees(self, result: Any, queue: Any, blocks: Any) -> None:
        """Note the blocks that the engine puts into a queue of free blocks."""
        self.note(queue, blocks, "freed")

    def takes(self, result: Any, queue: Any, given: Any = None) -> None:
        """Note the blocks that the engine takes out of a queue of free blocks."""
        self.note(queue, given if result is None else result, "allocated")

    def shares(self, result: Any, pool: Any, blocks: Sequence[Any]) -> None:
        """Note the blocks that a request gets from the prefix cache."""
        mine = [block for block in blocks if not block.is_null]
        self.note(pool.free_block_queue, mine, "shared")

    def refers(self, result: Any, manager: Any, keys: Any) -> None:
        """Note which blocks on the host the engine may evict, and which it keeps for copies."""
        chunks = [one for key in keys if (one := manager._policy.get(key)) is not None]
        self.note(manager, [one for one in chunks if one.ref_cnt == 0], "evictable")
        self.note(manager, [one for one in chunks if one.ref_cnt != 0], "pinned")

    def note(self, owner: Any, blocks: Any, what: str) -> None:
        """Note what happened to blocks, if the owner is the scheduler's queue, or of a pool."""
        blocks = blocks if isinstance(blocks, list) else [blocks]
        if not blocks:
            return
        lines = tuple(stack(self.package, inner=self.inner))
        if maybe(self.scheduler, "kv_cache_manager.block_pool.free_block_queue") is owner:
            self.events.append(("changed", what, [one.block_id for one in blocks], lines))
            return
        happened = {"allocated": "handed out"}.get(what, what)
        for one in parts_of(maybe(self.scheduler, "connector")):
            if maybe(one, "scheduler_manager.cpu_block_pool.free_block_queue") is owner:
                pool, places = SIMPLE, [block.block_id for block in blocks]
            elif host_of(one) is owner:
                pool, places = HOST, [chunk.chunk_id for chunk in blocks]
            else:
                continue
            self.events.append(("elsewhere", happened, pool, places, lines))

    def fails(self, result: Any, scheduler: Any, failed: Any) -> None:
        """Note the requests, or the blocks, whose loads have failed."""
        requests = sorted(one for one in failed if isinstance(one, str))
        blocks = sorted(one for one in failed if isinstance(one, int))
        self.events.append(("failed", requests, blocks, tuple(stack(self.package))))

    def emptied(
        self,
        result: Any,
        scheduler: Any,
        reset_running_requests: bool = False,
        reset_connector: bool = False,
    ) -> None:
        """Note that the prefix cache was emptied, unless it was refused or the host keeps KV."""
        parts = parts_of(maybe(scheduler, "connector"))
        keeps = parts and not (reset_connector and all(map(resets, parts)))
        if result and not keeps:
            self.events.append(("forgotten",))

    def idle(self, result: Any, scheduler: Any) -> None:
        """Note which blocks are free, when no request is left.

        Requests that have ended are left if the engine waits for a copy before it frees their
        blocks. If its connectors have none under way, it waits for ever.
        """
        connectors, left = parts_of(maybe(scheduler, "connector")), scheduler.requests.values()
        waits = maybe(scheduler, "deferred_frees") or not all(one.is_finished() for one in left)
        waits = waits or any(copies(maybe(one, "scheduler_manager")) for one in connectors)
        if self.scheduler is scheduler and not waits:
            pools = [pool for one in connectors if (pool := on_host(one)) is not None]
            if left and len(pools) < len(connectors):
                return
            blocks = scheduler.kv_cache_manager.block_pool
            free = [block.block_id for block in blocks.free_block_queue.get_all_free_blocks()]
            locked = sum(block.ref_cnt != 0 for block in blocks.blocks if not block.is_null)
            self.events.append(("rests", free, locked, pools))

    # What a watcher has, too: see `Journal.lose`.

    def lose(self) -> None:
        """Note that a hook failed, so that workers do not know what happened."""
        self.events.append(("lost",))

    def settled(self) -> None:
        """Do nothing, because workers judge."""


def contents_of(request: Any) -> Iterator[Content]:
    """Yield the images of a request. One without data is what its hash names."""
    for one in maybe(request, "mm_features") or ():
        content = content_of([part.data for part in (one.data or {}).values()])
        place, unknown = one.mm_position, -1 - abs(hash(one.identifier))
        yield place.offset, place.length, unknown if content is None else content


def copies(manager: Any) -> bool:
    """Return whether the simple connector has copies under way, which hold their blocks."""
    return manager is not None and bool(
        manager.has_pending_stores() or manager._reqs_to_load or manager._abandoned_reqs_to_load
    )


def host_of(connector: Any) -> Any:
    """Return what manages the blocks on the host of a connector, or None."""
    manager = maybe(connector, "connector_scheduler.manager")
    return maybe(manager, "primary_tier") or manager


def resets(connector: Any) -> bool:
    """Return whether a connector forgets the KV that it keeps. Files stay."""
    if maybe(connector, "connector_scheduler.manager.secondary_tiers"):
        return False
    return not {FILED, CACHED} & {kind.__name__ for kind in type(connector).__mro__}


def parts_of(connector: Any) -> list[Any]:
    """Return the connectors that a connector of several has, or the connector itself."""
    if connector is None:
        return []
    return [*(maybe(connector, "_connectors") or [connector])]


def on_host(connector: Any) -> tuple[str, int, list[int], list[int], int] | None:
    """Return the pool on the host: its name, how many blocks, the free, the cached, the locked.

    None if there is no such pool, or the engine copies some of them.
    """
    if hasattr(connector, "scheduler_manager"):  # Its block 0 is none.
        if connector.scheduler_manager is None:
            return None
        pool = connector.scheduler_manager.cpu_block_pool
        free = [one.block_id - 1 for one in pool.free_block_queue.get_all_free_blocks()]
        locked = sum(one.ref_cnt != 0 for one in pool.blocks if not one.is_null)
        return SIMPLE, len(pool.blocks) - 1, free, [], locked
    scheduler, manager = maybe(connector, "connector_scheduler"), host_of(connector)
    if manager is None or scheduler._jobs or maybe(scheduler, "_reset_fence"):
        return None
    if maybe(scheduler, "manager._jobs"):  # Those below the host.
        return None
    used, size = manager._num_allocated_chunks, manager._num_chunks
    chunks = list(manager._policy.chunks.values())
    free = [*manager._free_list, *range(used, size)]
    locked = sum(one.ref_cnt != 0 for one in chunks)
    return HOST, size, free, [one.chunk_id for one in chunks], locked
