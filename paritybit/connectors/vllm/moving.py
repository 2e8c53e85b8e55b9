"""KV that the engine's connectors copy to the host or to files and back.

A copy ends when the engine sees that it has, or waits for it. Its bytes may move long before.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from paritybit.connectors.following import FILES, HOST, pages
from paritybit.connectors.hooking import Call, maybe
from paritybit.connectors.vllm.pools import DRAFT, Blocks
from paritybit.connectors.vllm.scheduling import CACHED, FILED, MESSAGE, PULLED, SIMPLE
from paritybit.watch.facts import FORWARDS, At, Copy
from paritybit.watch.stacks import Stack
from paritybit.watch.weak import Weakly

BELOW, TIER = "secondary_tiers", {"type", "root_dir", "n_read_threads", "n_write_threads"}
"""The setting with what is below the host, and the only ones that this may have."""

FOLLOWED = {
    "OffloadingConnector": {
        *("cpu_bytes_to_use", "offload_prompt_only", "sync_load_budget_bytes"),
        *("spec_name", BELOW),
    },
    "SimpleCPUOffloadConnector": {"cpu_bytes_to_use", "lazy_offload"},
    FILED: {"shared_storage_path"},
    PULLED: {"kv_lease_duration"},
    CACHED: {
        f"lmcache.{name}"
        for name in (
            *("chunk_size", "local_cpu", "max_local_cpu_size", "local_disk"),
            *("max_local_disk_size", "save_decode_cache"),
        )
    },
}
"""The KV connectors that are followed, and the only settings that each may have."""

SEVERAL = "MultiConnector", "connectors"
"""The connector that has others, and its setting that names them."""

HERE, THERE, ENDS = "here", "there", ("source", "target")
"""The ends of a copy: the device, and the pool elsewhere. Then, by what each is for a copy."""

Part = tuple[str, Tensor, Tensor]
"""A KV group, its slots, and the places elsewhere from or to which these are copied."""

MOST_LOADED = 4096
"""The most requests whose last load is remembered."""


class Moving(Blocks):
    """The part of an engine that follows its copies of KV."""

    backend: Any = Weakly()
    """What copies for the simple connector."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.backend = None
        self.loaded = dict[str, list[Part]]()
        """The parts of the last load for each request."""
        self.stored = dict[int, str]()
        """The request of each store whose bytes have not moved."""
        self.filed = False
        """Whether the engine has used a file. It loads none without metadata of attention, and
        replays of graphs store none."""

    def until(self, now: Any) -> str:
        """Return the name with which `over` is told of a forward, if copies may not wait for it."""
        message = maybe(now, f"output.{MESSAGE}")
        return "" if self.backend is None or message is None else str(message["step"])

    def complete(self) -> None:
        """End the current forward if its model has run, as what is copied next holds its KV."""
        if self.watcher is not None and self.now is not None and self.now.ran:
            self.ended(self.now)
            self.watcher.end(self.until(self.now))

    def carried(self, pool: str, parts: Iterable[Part], *, stores: bool) -> None:
        """Report parts that were copied to a pool elsewhere, or back."""
        if self.watcher is not None:
            for group, slots, places in parts:
                here, there = At(slots), At(places, pool)
                self.watcher.moved(group, *((here, there) if stores else (there, here)))

    def starts(
        self,
        name: str,
        pool: str,
        parts: Iterable[Part],
        *,
        stores: bool,
        request: str = "",
        waits: bool = True,
        kept: Sequence[str] = (HERE, THERE),
    ) -> None:
        """Report that the engine begins a copy to a pool elsewhere, or back.

        `waits` says whether it waits for the forwards that were launched before. See `Copy` for
        what is `kept`, of the two ends.
        """
        if self.watcher is None or name in self.watcher.copies_of:
            return
        copies = list[Copy]()
        sides = dict(zip((HERE, THERE) if stores else (THERE, HERE), ENDS, strict=True))
        for group, slots, places in parts:
            here, there = At(slots), At(places, pool)
            ends = (here, there) if stores else (there, here)
            # Copies of one direction run one after another.
            queue = f"{pool} {'stores' if stores else 'loads'}"
            mine = tuple(sides[one] for one in kept)
            copies.append(Copy(group, *ends, request, queue, (FORWARDS,) * waits, mine))
        self.watcher.begin_copies(name, copies)

    def over(self, names: Iterable[str]) -> None:
        """Report that the engine knows that copies are over."""
        for name in names:
            if self.watcher is not None:
                self.watcher.end_copies(name)

    def failed(self, requests: Sequence[str], blocks: Sequence[int], lines: Any) -> None:
        """Report what the engine's connector says to have failed: loads for requests, or blocks."""
        assert self.watcher is not None and self.pool is not None
        self.journal.count(failed_loads=len(requests) or 1)
        for group, slots, _ in (part for name in requests for part in self.loaded.pop(name, ())):
            self.watcher.failed(group, At(slots), Stack(*lines))
        for group in self.pool.names if blocks else ():
            self.watcher.failed(group, At(self.pool.slots(blocks)), Stack(*lines))

    # The connector whose jobs have blocks of each engine group.

    def parts_of(self, device: Any, host: Any) -> Iterable[Part]:
        """Yield the parts of a job between blocks of the device and as many of the host."""
        begin = 0
        for number, count in enumerate(device.group_sizes):
            mine = slice(begin, begin + count)
            begin += count
            if self.pool is not None:
                places = pages(host.block_ids[mine], self.pool.page)
                for group in self.pool.names_of(number) if count else ():
                    yield group, self.pool.slots(device.block_ids[mine]), places

    def job(self, number: int, source: Any, target: Any, request: str = "") -> None:
        """Report that a job begins. That of the device has the sizes of groups."""
        stores = hasattr(source, "group_sizes")
        ends = (source, target) if stores else (target, source)
        parts = self.parts_of(*ends)
        # It may free the blocks of a store, and then waits for it before they are written.
        kept = (THERE,) if stores else (HERE, THERE)
        self.starts(f"job {number}", HOST, parts, stores=stores, request=request, kept=kept)

    def expects(self, worker: Any, metadata: Any) -> None:
        """Note the requests of stores, some of which the engine makes before the forward."""
        for number, one in metadata.store_jobs.items():
            self.stored[number] = one.req_id
        for number in [*self.stored][:-MOST_LOADED]:
            del self.stored[number]

    def stores(self, original: Call, worker: Any, metadata: Any) -> None:
        """Report the stores that the engine queues after a forward."""
        self.complete()
        if worker._is_store_writer:
            for number, one in metadata.store_jobs.items():
                self.job(number, one.src_spec, one.dst_spec, one.req_id)

    def loads(self, original: Call, worker: Any, metadata: Any) -> None:
        """Report the loads that the engine submits. It waits for some before the forward."""
        for number, one in metadata.load_jobs.items():
            self.loaded[one.req_id] = [*self.parts_of(one.dst_spec, one.src_spec)]
            self.job(number, one.src_spec, one.dst_spec, one.req_id)
        for name in [*self.loaded][:-MOST_LOADED]:
            del self.loaded[name]
        original()
        self.filled()

    def submits(self, original: Call, worker: Any, number: int, source: Any, target: Any) -> None:
        """Report a job that begins without having been queued."""
        self.job(number, source, target)

    def transfer(self, original: Call, handler: Any, number: int, source: Any, target: Any) -> None:
        """Report the blocks of each engine group that are copied to the host or back."""
        if self.pool is not None:
            self.complete()
            original()
            stores = handler.gpu_to_cpu
            if stores and (request := self.stored.pop(number, None)) is not None:
                self.keeps(request, source)
            ends = (source, target) if stores else (target, source)
            self.carried(HOST, self.parts_of(*ends), stores=stores)

    def keeps(self, request: str, device: Any) -> None:
        """Report the blocks of a request that are kept for requests with its first tokens."""
        assert self.watcher is not None and self.pool is not None
        draft, blocks = self.pool.draft, list(device.block_ids)
        for number, count in enumerate(device.group_sizes):
            mine, blocks = blocks[:count], blocks[count:]
            slots, owners = self.pool.slots(mine), list[tuple[str, str, str]]()
            for place, one in enumerate(self.pool.targets):
                name = f"{request} in group {number}" if place else request
                owners += [(kind, name, "") for kind in one.names if one.number == number]
            if draft is not None and draft.number == number:
                owners += [(kind, request, DRAFT) for kind in draft.names]
            kinds = [kind for kind, *_ in owners]
            for kind, name, model in owners:
                if kinds.count(kind) == 1:  # Layers of both models may be in one group.
                    self.watcher.kept(kind, name, slots, model)

    def finishes(self, result: Any, worker: Any) -> None:
        """Report the jobs that the engine sees to be over."""
        if result:
            self.complete()
            self.over(f"job {one.job_id}" for one in result)

    def waits(self, result: Any, worker: Any, numbers: Iterable[int]) -> None:
        """Report the jobs for which the engine has waited."""
        self.over(f"job {number}" for number in numbers)

    # The simple connector, which copies a block of all groups to a block.

    def blocks_of(self, device: Any, host: Any) -> Iterable[Part]:
        """Yield the parts of a copy between blocks of the device and of the host."""
        if self.pool is not None:
            slots, places = self.pool.slots(device), pages(host, self.pool.page)
            yield from ((group, slots, places) for group in self.pool.names)

    def launches(
        self,
        original: Call,
        backend: Any,
        source: Any,
        target: Any,
        is_store: bool,
        event_idx: int,
        events_list: Any = None,
        wait_event: Any = None,
    ) -> None:
        """Report a copy that the engine gives to its thread after a forward."""
        self.backend = backend
        self.complete()
        ends = (source, target) if is_store else (target, source)
        given = simple(event_idx, is_store), SIMPLE, self.blocks_of(*ends)
        self.starts(*given, stores=is_store, waits=wait_event is not None)
        original()
        if not self.in_turns:
            self.carried(SIMPLE, self.blocks_of(*ends), stores=is_store)

    def copies_blocks(self, original: Call, source: Any, target: Any, params: Any) -> None:
        """Report the blocks that the thread of the simple connector copies, if it takes turns."""
        if self.in_turns:
            self.complete()
            original()
            stores = params is self.backend._store_params
            ends = (source, target) if stores else (target, source)
            self.carried(SIMPLE, self.blocks_of(*ends), stores=stores)

    @property
    def in_turns(self) -> bool:
        """Whether the simple connector's thread runs while the engine waits, as on a CPU."""
        return self.watcher is not None and self.watcher.gpu is None and self.backend is not None

    def polls(self, result: Any, worker: Any, is_store: bool) -> None:
        """Report the copies up to the last that the engine sees to be over."""
        if self.watcher is not None:
            done = [number for number in self.begun(is_store) if number <= result]
            if done:
                self.complete()
                self.over(simple(number, is_store) for number in done)

    def flushes(self, original: Call, worker: Any) -> None:
        """Report the copies for which the engine waits."""
        events = {False: list(worker._load_events), True: list(worker._store_events)}
        original()
        for is_store, known in events.items():
            self.over(simple(number, is_store) for number, _ in known)

    def begun(self, is_store: bool) -> Iterable[int]:
        """Yield the numbers of the copies of the simple connector that have begun."""
        prefix = simple("", is_store)
        for name in () if self.watcher is None else [*self.watcher.copies_of]:
            if name.startswith(prefix):
                yield int(name.removeprefix(prefix))

    # The connector that stores a prompt in files, while the engine waits. It has one engine group.

    def of_prompt(self, connector: Any, one: Any) -> Iterable[Part]:
        """Yield the slots of the tokens of a prompt, and their places in files by its key."""
        if self.pool is None or self.watcher is None:
            return
        folder = connector._generate_foldername_debug(one.token_ids, one.mm_hashes)
        keys = [f"{Path(folder).name} {at}" for at in range(len(one.slot_mapping))]
        places = self.watcher.places(FILES, keys)
        yield from ((group, one.slot_mapping, places) for group in self.pool.names)

    def opens(self, original: Call, connector: Any) -> None:
        """Report the prompts that the engine loads before a forward."""
        requests = [one for one in connector._get_connector_metadata().requests if not one.is_store]
        before, self.filed = self.filed, False
        original()
        loaded, self.filed = self.filed, before
        for one in requests if loaded else ():
            self.carried(FILES, self.of_prompt(connector, one), stores=False)
        self.filled()

    def files(self, original: Call, connector: Any) -> None:
        """Remember that the engine uses the file of a layer."""
        original()
        self.filed = True

    def saves(self, original: Call, connector: Any) -> None:
        """Report the prompts that the engine has stored during a forward."""
        requests = [one for one in connector._get_connector_metadata().requests if one.is_store]
        filed, self.filed = self.filed, False
        if requests and filed:
            self.complete()
            for one in requests:
                self.carried(FILES, self.of_prompt(connector, one), stores=True)

    def filled(self) -> None:
        """Go on with a forward that waits for what the engine loads before it."""
        raise NotImplementedError


def simple(number: object, is_store: bool) -> str:
    """Return the name of a copy of the simple connector."""
    return f"{'store' if is_store else 'load'} {number}"


def unfollowed(transfer: Any, alone: bool = True) -> list[str]:
    """Return what is not followed of a configuration of KV connectors.

    `alone` is whether the scheduler and its only rank are in this process.
    """
    if transfer is None:
        return []
    name, settings = transfer.kv_connector, {**transfer.kv_connector_extra_config}
    parts: Sequence[tuple[str, Any]] = [(name, settings)]
    if name == SEVERAL[0]:
        inner = settings.pop(SEVERAL[1], [])
        parts = [(one["kv_connector"], one.get("kv_connector_extra_config", {})) for one in inner]
        whole = settings or any(one in {FILED, CACHED, PULLED} for one, _ in parts)
        parts = [(name, settings)] if whole else parts
    known = all(one in FOLLOWED and {*given} <= FOLLOWED[one] for one, given in parts)
    tiers = [tier for _, given in parts for tier in given.get(BELOW, ())]
    known &= all(one["type"] == "fs" and {*one} <= TIER for one in tiers)
    return [] if known and (alone or not tiers) else ["a KV connector"]
