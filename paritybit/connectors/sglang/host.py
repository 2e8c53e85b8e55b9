"""Follows KV on the host and in files: its copies, and the slots of the host.

A copy is under way from its submission until the engine sees its end, or a forward waits for it.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain, count
from threading import RLock
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.following import FILES, HOST, Following
from paritybit.connectors.hooking import Call, NotRecognisedError, maybe
from paritybit.watch.facts import At, Copy, HostSlots
from paritybit.watch.weak import ByObject

HOST_KINDS = ("MHATokenToKVPoolHost", "AsymmetricMHATokenToKVPoolHost", "MLATokenToKVPoolHost")
"""The classes of host pools whose copies are followed."""

NO_ROOM = "allocations that found no room on the host:"
"""The prefix of counts of allocations for which a host pool had too few slots, by group."""

POOLS = ("kv", "swa", "mamba")
"""The names of host pools, by the number of a node's component."""

UNDER_WAY = (
    *("ongoing_write_through", "ongoing_load_back", "ongoing_prefetch", "ongoing_backup"),
    "ongoing_offload",
)
"""The copies of a prefix cache, or while requests decode, which may use host slots that no node
holds."""

QUEUES = (
    *("prefetch_queue", "prefetch_sync_queue", "prefetch_hit_queue", "prefetch_buffer"),
    *("ack_prefetch_queue", "backup_queue", "ack_backup_queue", "host_mem_release_queue"),
)
"""The queues of a controller. One holds what an aborted request still has on the host."""

NOTES = "prefetch_sync_queue", "ack_prefetch_queue"
"""The queues with notes of what a storage has fetched."""

RUNS, DONE, TAKEN = range(3)
"""How far a fetch is: its thread runs, or is done, or the prefix cache has taken its notes."""

COPYING, ENDS = ("write", "load"), ("source", "target")
"""The copies whose slots are in use until their note is taken, and their ends."""

BUFFERS = "get_key_buffer", "get_value_buffer", "get_kv_buffer"
"""The methods by which attention gets a layer of a pool, once it has waited for it."""

PARTS = "full_kv_pool", "swa_kv_pool"
"""The pools in a hybrid one."""

NOWHERE = At(torch.empty(0, dtype=torch.int64), FILES)


class Hosts(Following):
    """The part of an engine that reports the copies of KV to the host and to files, and back."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.copied_elsewhere: str | None = None
        """Why KV may be copied without being followed, or None."""
        self.names: ByObject[str] = ByObject()
        """The group of each pool and allocator."""
        self.numbers = count()
        self.submitting = ""
        """The name of the copies that a controller submits now."""
        self.begun = set[str]()
        """The groups of these copies."""
        self.planned: dict[int, list[str]] = {}
        """By controller, the names of the copies that it has not submitted."""
        self.submitted: dict[str, tuple[Any, Any, int]] = {}
        """By name of copies, the engine's note of their end, and where a forward waits for it."""
        self.paged: ByObject[tuple[Any, int]] = ByObject()
        """The host pool and the first slot of the page that a tensor was read from."""
        self.read: ByObject[str] = ByObject()
        """The key of the file that a tensor was read from."""
        self.fetches: dict[str, tuple[Any, int]] = {}
        """By name of copies from files, what a storage fetches, and how far that is."""
        self.completion: Any = None
        """The engine's note of the end of the copies that were submitted last."""
        self.backups: dict[str, bool] = {}
        """By name of copies to files, whether the prefix cache has noted them."""
        self.backing_up = RLock()
        """Held while `backups` changes, which the scheduler and the thread of a storage share."""
        self.completing: Any = None
        """The controller whose notes of the ends of copies the prefix cache takes now, or None."""
        self.fetching = ""
        """The name of the copies that the thread of a storage makes now."""
        self.beside: dict[str, list[Copy]] = {}
        """By name of copies from files, those to other host pools than that of the full layers."""
        self.host_locks = 0
        """How many locks of nodes on the host are held."""
        self.cached_on_host = True
        """Whether the prefix cache keeps KV on the host. Else only retracted requests have some."""
        self.copies_kv = False
        """Whether KV is copied to the host, or to another engine."""
        self.scheduling: Any = None
        """The stream of the scheduler, if streams have marks."""
        self.launched = dict[str, Any]()
        """The mark after each forward for which the host has not waited, if streams have marks."""
        self.marks: dict[str, dict[tuple[int, int], Any]] = {}
        """By name of copies, the mark after what they bring to each layer of each pool."""
        self.awaiting = list[str]()
        """The copies to a pool that the layers of a forward wait for, each for its own part."""
        self.reached = -1
        """The last layer for whose part the forward has waited."""
        self.unfilled: ByObject[Tensor] = ByObject()
        """Which slots of each host pool were not filled since they were handed out, bool [n]."""

    def host_pool(self, host: Any) -> None:
        """Follow the copies to a host pool and back, or report that they are not followed."""
        kind = type(host)
        if kind.__name__ not in HOST_KINDS:
            self.copied_elsewhere = f"what comes back from a {kind.__name__} is not followed"
            self.journal.undecided(self.copied_elsewhere)
            return
        self.hook(kind, "backup_from_device_all_layer", self.back_up)
        self.hook(kind, "load_to_device_per_layer", self.load_back)
        self.hook(kind, "get_data_page", self.page_read)
        self.hook(kind, "set_from_flat_data_page", self.page_filled)
        self.hook(kind, "alloc", self.handed_out)
        self.hook(kind, "free", lambda host, indices: self.happened("freed", host, indices))

    def follow_hosts(self, cache: Any) -> None:
        """Record the group of each host pool of a prefix cache."""
        for entry in entries(cache).values():
            self.copies_kv = True
            if (name := self.names.get(entry.device_pool)) is not None:
                self.names[entry.host_pool] = name

    # What waits for what.

    def until(self, now: Any) -> str:
        """Return the name of a forward for which copies may not wait, or "" if they all do.

        In the scheduler's own stream, a forward is over when the scheduler reads its tokens.
        """
        if not self.copies_kv or stream() is self.scheduling or (mark := marked()) is None:
            return ""
        name = f"forward {self.forwards}"
        self.followed_by({})
        self.launched[name] = mark
        return name

    def followed_by(self, known: Mapping[Any, int]) -> list[str]:
        """Return the forwards for which the host has waited, or that are `known` to come before."""
        over = [name for name, mark in self.launched.items() if mark.over]
        for name in over:
            del self.launched[name]
            if self.watcher is not None:
                self.watcher.end_copies(name)
        return over + [name for name, mark in self.launched.items() if mark.before(known)]

    # Copies between a pool and the host.

    def plans(self, original: Call, controller: Any) -> None:
        """Report copies that a controller will submit later. Their slots must be there until then.

        Those of ranks that share contexts have other numbers then.
        """
        loads = original.function.__name__ == "load"
        queue = maybe(controller, f"{'load' if loads else 'write'}_queue")
        before = len(queue or ())
        original()
        shared = (maybe(storing(controller), "dcp_size") or 1) > 1
        if self.watcher is None or shared or len(queue or ()) <= before:
            return
        copies, operation = list[Copy](), queue[-1]
        parts = [(storing(controller), operation)]
        for one in maybe(operation, "pool_transfers") or ():
            entry = controller.mem_pool_host.entry_map.get(one.name)
            parts.append((maybe(entry, "host_pool"), one))
        for pool, one in parts:
            group = None if pool is None else self.names.get(pool)
            here, there = one.device_indices, one.host_indices
            if group is not None and here is not None and there is not None:
                ends = (At(there, HOST), At(here)) if loads else (At(here), At(there, HOST))
                copies.append(Copy(group, *ends, kept=ENDS, planned=True))
        name = f"planned {next(self.numbers)}"
        self.planned.setdefault(id(queue), []).append(name)
        self.watcher.begin_copies(name, copies)

    def submit(self, original: Call, controller: Any) -> None:
        """Name the copies that a controller submits."""
        if self.watcher is None:
            return
        loads = "load" in original.function.__name__
        queue = maybe(controller, f"{'load' if loads else 'write'}_queue")
        for name in self.planned.pop(id(queue), ()):
            self.watcher.end_copies(name)
        if self.submitting:
            return
        before = {id(ack) for ack in acks(controller)}
        self.submitting = f"{'load' if loads else 'write'} {next(self.numbers)}"
        self.begun = set()
        try:
            original()
        finally:
            name, self.submitting = self.submitting, ""
        counter = controller.layer_done_counter
        for ack in acks(controller):
            if id(ack) not in before:
                producer = counter.producer_index if loads else -1
                self.submitted[name] = ack, counter, int(producer)

    def back_up(
        self,
        original: Call,
        host: Any,
        device_pool: Any,
        host_indices: Tensor,
        device_indices: Tensor,
    ) -> None:
        """Report slots that the engine copies to the host, before the copy."""
        self.fills(host, host_indices)
        name = self.names.get(device_pool)
        if self.watcher is not None and name is not None:
            self.begin(name, At(device_indices), At(host_indices, HOST))
            self.watcher.store(HOST, name, device_indices, host_indices)
        original()
        if self.watcher is not None:
            self.watcher.note_copy()

    def load_back(
        self,
        original: Call,
        host: Any,
        device_pool: Any,
        host_indices: Tensor,
        device_indices: Tensor,
        layer_id: int = 0,
    ) -> None:
        """Report slots that the engine copies back from the host, one layer at a time."""
        name = self.names.get(device_pool)
        if name is not None:
            self.begin(name, At(host_indices, HOST), At(device_indices))
        original()
        if (mark := marked()) is not None and self.submitting:
            place = id(device_pool), int(layer_id)
            self.marks.setdefault(self.submitting, {})[place] = mark
        if self.watcher is not None and name is not None:
            self.watcher.load(HOST, name, device_indices, host_indices)
        elif self.watcher is not None:
            self.watcher.note_copy()
            kind = type(device_pool).__name__
            self.journal.undecided(f"KV that is loaded from the host into a {kind} is not followed")

    def begin(self, group: str, source: At, target: At) -> None:
        """Report the begin of a group's part of the copies that are submitted now, once."""
        if self.watcher is not None and self.submitting and group not in self.begun:
            self.begun.add(group)
            queue = self.submitting.split()[0]
            kept = ENDS if queue in COPYING else ()
            after = self.followed_by(maybe(stream(), "known") or {})
            copy = Copy(group, source, target, queue=queue, after=after, kept=kept)
            self.watcher.begin_copies(self.submitting, [copy])

    def retracts(self, original: Call, cache: Any) -> None:
        """Name the copies of a retracted request, for which the engine must wait."""
        if self.watcher is None:
            return
        self.submitting, self.begun = f"retraction {next(self.numbers)}", set[str]()
        self.completion = None
        try:
            original()
        finally:
            name, self.submitting = self.submitting, ""
            self.marks.pop(name, None)
        if self.completion is not None and not self.completion.finish_event.query():
            self.watcher.acknowledged(name)
        self.watcher.end_copies(name)

    def completion_of(self, result: Any, transfers: Any) -> None:
        """Note what says when the copies that were submitted last are over."""
        self.completion = result

    def completes(self, original: Call, cache: Any) -> None:
        """Report the end of the copies whose notes the prefix cache takes."""
        self.completing = controller = maybe(cache, "cache_controller")
        try:
            original()
        finally:
            self.completing = None
        if controller is not None:
            waiting = {id(ack) for ack in acks(controller)}
            for name, (ack, counter, _) in self.submitted.items():
                mine = counter is controller.layer_done_counter and id(ack) not in waiting
                if self.watcher is not None and mine and not ack.finish_event.query():
                    self.watcher.acknowledged(name)
            self.finished(waiting)

    def finished(self, waiting: Collection[int] = ()) -> None:
        """Report the end of copies, except for those whose notes are still `waiting`."""
        for name, (ack, *_) in [*self.submitted.items()]:
            if id(ack) not in waiting and ack.finish_event.query():
                self.over(name)

    def seen(self) -> None:
        """Report the end of copies, if the prefix cache frees slots while it takes their notes.

        It may take a note, wait for its copy and free the slots in one call.
        """
        if self.completing is not None:
            self.finished({id(ack) for ack in acks(self.completing)})

    def awaited(self, pool: Any) -> None:
        """Report the end of the copies to a pool for which the next forward waits.

        It waits for each layer when it needs it. Here, it waits for all of them first, but they end
        only with `arrived`.
        """
        self.awaiting = []
        counter = maybe(pool, "layer_transfer_counter")
        if counter is None or counter.consumer_index < 0:
            return
        current = stream()
        known = maybe(current, "known")
        for name, (_, mine, producer) in [*self.submitted.items()]:
            if mine is counter and producer == counter.consumer_index:
                counter.wait_until(counter.num_layers - 1)
                self.awaiting.append(name)
        if self.awaiting:
            self.hook(type(counter), "wait_until", self.layer_awaited)
            parts = (maybe(pool, name) for name in PARTS)
            for kind in {type(one) for one in (pool, *parts) if hasattr(one, BUFFERS[0])}:
                for name in BUFFERS:
                    self.hook(kind, name, self.layer_read)
        self.reached = -1  # The waits above are not the engine's.
        if known is not None:
            current.known = known

    def layer_awaited(self, result: Any, counter: Any, threshold: int) -> None:
        """Note that a forward waits for what is copied to layers."""
        self.reached = max(self.reached, int(threshold))

    def layer_read(self, result: Any, pool: Any, layer_id: int) -> None:
        """Note whether a forward gets a layer that it did not wait for: its copies do not end."""
        follows = maybe(pool, "layer_transfer_counter") is not None
        layer = int(layer_id) - int(maybe(pool, "start_layer") or 0)
        known = maybe(stream(), "known") or {}
        found = (self.marks.get(name, {}).get((id(pool), layer)) for name in self.awaiting)
        marks = [one for one in found if one is not None]
        waited = all(one.over or one.before(known) for one in marks)
        if (follows and self.reached < layer) or not waited:
            self.awaiting = []

    def arrived(self) -> None:
        """Report the end of the copies for which the layers of a forward waited."""
        for name in self.awaiting:
            self.over(name)
        self.awaiting = []

    def over(self, name: str) -> None:
        """Report the end of copies."""
        del self.submitted[name]
        self.marks.pop(name, None)
        if self.watcher is not None:
            self.watcher.end_copies(name)

    # Slots on the host, and files.

    def handed_out(self, result: Any, host: Any) -> None:
        """Report slots that a host pool hands out, or count that it has too few."""
        if isinstance(result, Tensor):
            if self.unfilled.get(host) is None:
                self.unfilled[host] = torch.zeros(size_of(host), dtype=torch.bool)
            self.fills(host, result, unfilled=True)
        elif self.watcher is not None and (group := self.names.get(host)) is not None:
            self.journal.count(**{f"{NO_ROOM} {group}": 1})
        self.happened("handed out", host, result)

    def fills(self, host: Any, slots: Tensor | None, *, unfilled: bool = False) -> None:
        """Note that slots of a host pool are filled, or were handed out `unfilled`.

        All count as filled if the numbers are on a GPU, for which this does not wait.
        """
        if slots is not None and (noted := self.unfilled.get(host)) is not None:
            noted[slice(None) if slots.is_cuda else slots] = unfilled and not slots.is_cuda

    def happened(self, what: str, host: Any, slots: Any) -> None:
        """Report what happened to slots of a host pool."""
        self.seen()
        group = self.names.get(host)
        if self.watcher is not None and group is not None and isinstance(slots, Tensor):
            self.watcher.happened(what, group, At(slots, HOST))

    def stores(self, original: Call, controller: Any, host_indices: Tensor) -> None:
        """Report slots of the host that a storage will copy to files, unless another rank does.

        The prefix cache calls for it as soon as it sees the end of a copy. The thread of the
        storage may be done before the call returns.
        """
        self.finished()
        group = self.group_on_host(controller)
        if self.watcher is None or group is None or maybe(controller, "backup_skip"):
            return
        copy = Copy(group, At(host_indices, HOST), NOWHERE, queue="backup", kept=ENDS[:1])
        with self.backing_up:
            name = f"backup {original()}"
            self.watcher.begin_copies(name, [copy])
            self.backups[name] = False

    def group_on_host(self, controller: Any) -> str | None:
        """Return the group whose pool on the host a storage copies to files, if it is followed."""
        return self.names.get(storing(controller))

    def fetch(self, original: Call, controller: Any, operation: Any) -> None:
        """Report slots of the host that a thread of a storage fills from files."""
        name = f"fetch {operation.id}"
        self.fills(storing(controller), operation.host_indices)
        for one in maybe(operation, "pool_transfers") or ():
            entry = controller.mem_pool_host.entry_map.get(one.name)
            self.fills(maybe(entry, "host_pool"), one.host_indices)
        if self.watcher is None or name in self.fetches or operation.host_indices is None:
            return
        self.begin_fetch(name, controller, operation.host_indices)
        self.fetches[name], self.fetching = (operation, RUNS), name
        try:
            original()
        finally:
            self.fetches[name], self.fetching = (operation, DONE), ""

    def fetch_beside(self, original: Call, storage: Any, transfers: Any) -> None:
        """Report slots of other host pools that a thread of a storage fills from files."""
        if self.watcher is not None and self.fetching:
            pools = {
                one.name: self.names.get(storage.registered_pools[one.name]) for one in transfers
            }
            self.beside[self.fetching] = [
                Copy(group, NOWHERE, At(one.host_indices, HOST))
                for one in transfers
                if (group := pools[one.name]) is not None and one.host_indices is not None
            ]
            self.watcher.begin_copies(self.fetching, self.beside[self.fetching])
        original()

    def begin_fetch(self, name: str, controller: Any, host_indices: Tensor) -> None:
        """Report the begin of a copy from files to slots of the host."""
        group = self.group_on_host(controller)
        if self.watcher is not None and group is not None:
            self.watcher.begin_copies(name, [Copy(group, NOWHERE, At(host_indices, HOST))])

    def fetched(self, result: Any, controller: Any, operation: Any) -> None:
        """Report that the prefix cache takes what a storage has fetched so far.

        The thread may still fill the rest.
        """
        name = f"fetch {operation.id}"
        _, state = self.fetches.get(name, (None, TAKEN))
        if self.watcher is not None and state != TAKEN:
            self.watcher.end_copies(name)
            if len(rest := operation.host_indices[result[0] :]):
                self.begin_fetch(name, controller, rest)
            if (beside := self.beside.get(name)) and not operation.pool_transfers_done:
                self.watcher.begin_copies(name, beside)

    def polled(self, result: Any, cache: Any) -> None:
        """Report the end of the copies from files whose notes the prefix cache has taken.

        A thread may still hold a note between two queues, so a fetch is forgotten one poll later.
        Until then, host slots of an aborted request may wait to be freed.
        """
        noted = {f"backup {number}" for number in maybe(cache, "ongoing_backup") or ()}
        with self.backing_up:
            taken = [name for name, known in self.backups.items() if known and name not in noted]
            self.backups = {name: name in noted for name in self.backups if name not in taken}
        for name in taken:
            if self.watcher is not None:
                self.watcher.acknowledged(name)
        queues = (maybe(cache, f"cache_controller.{name}.queue") for name in NOTES)
        waiting = {id(note.operation) for queue in queues for note in queue or ()}
        for name, (operation, state) in [*self.fetches.items()]:
            if state == TAKEN:
                del self.fetches[name]
            elif state == DONE and id(operation) not in waiting:
                self.fetches[name] = operation, TAKEN
                self.beside.pop(name, None)
                if self.watcher is not None:
                    self.watcher.end_copies(name)

    def stored(self, original: Call, controller: Any, operation: Any) -> None:
        """Report that a storage has copied slots of the host to files, or has failed."""
        try:
            original()
        finally:
            with self.backing_up:
                self.backups.pop(f"backup {operation.id}", None)
            if self.watcher is not None:
                self.watcher.end_copies(f"backup {operation.id}")

    def page_read(self, result: Any, host: Any, index: Any) -> None:
        """Note which page a tensor was read from."""
        if self.watcher is not None:
            self.paged[result] = host, int(index)

    def file_written(self, original: Call, storage: Any, key: str, value: Any = None) -> None:
        """Report a page that a storage writes to a file, unless the file is there."""
        held = self.paged.get(value)
        there = storage.exists(key)
        if original() and held is not None and not there:
            self.file_copy(key, *held, loads=False)

    def file_read(self, result: Any, storage: Any, key: str) -> None:
        """Note which file a tensor was read from."""
        if self.watcher is not None and isinstance(result, Tensor):
            self.read[result] = key

    def page_filled(self, result: Any, host: Any, index: Any, data_page: Any) -> None:
        """Report a page of the host that was filled from a file."""
        key = self.read.get(data_page)
        if key is not None:
            self.file_copy(key, host, int(index), loads=True)

    def file_copy(self, key: str, host: Any, index: int, *, loads: bool) -> None:
        """Report a copy of a page of the host to a file, or back."""
        group, size = self.names.get(host), int(host.page_size)
        if self.watcher is not None and group is not None:
            page = At(torch.arange(index, index + size), HOST)
            file = At(self.watcher.places(FILES, [key], size), FILES)
            self.watcher.moved(group, *((file, page) if loads else (page, file)))

    def locks(self, result: Any, cache: Any) -> None:
        """Count a lock of a node on the host."""
        self.host_locks += 1

    def unlocks(self, result: Any, cache: Any) -> None:
        """Count the end of a lock of a node on the host."""
        self.host_locks -= 1

    def flushed(self, cache: Any) -> None:
        """Judge whether all slots of the host pools are free, after a flush.

        What was planned is not copied any more.
        """
        self.backups.clear()
        self.host_locks = 0
        for name in chain(*self.planned.values()):
            if self.watcher is not None:
                self.watcher.end_copies(name)
        self.planned.clear()
        with self.needing("{} are not watched"):
            hosts = slots_of(cache, self.unfilled).items()
            empty = {name: replace(one, cached=one.cached[:0]) for name, one in hosts}
            if self.watcher is not None and empty:
                self.watcher.idle({}, hosts=empty)

    def on_host(self, cache: Any) -> dict[str, HostSlots]:
        """Return the slots of the host pools of a prefix cache, if it copies nothing."""
        self.polled(None, cache)
        with self.needing("{} are not watched"):
            if not at_rest(cache) or self.fetches:
                return {}
            found = slots_of(cache, self.unfilled)
            if not self.cached_on_host:
                found = {name: replace(one, cached=one.cached[:0]) for name, one in found.items()}
            if maybe(found.get("host kv"), "locked") == 0:  # Some trees do not tell.
                found["host kv"] = replace(found["host kv"], locked=self.host_locks)
            return found
        return {}


def stream() -> Any:
    """Return the current stream if it has marks, as the driver's streams on a CPU do, or None."""
    current = torch.cpu.current_stream()
    return current if hasattr(current, "mark") else None


def marked() -> Any:
    """Return a mark after what the current stream has got, or None if it has no marks."""
    current = stream()
    return None if current is None else current.mark()


def entries(cache: Any) -> Mapping[str, Any]:
    """Return the host pools of a prefix cache, by name, each with the pool that it holds KV of."""
    group = maybe(cache, "host_pool_group") or maybe(cache, "token_to_kv_pool_host")
    found = (maybe(group, "entry_map") or {}).items()
    named = {str(getattr(name, "value", name)): entry for name, entry in found}
    if not named and hasattr(group, "device_pool"):  # The only one, as before 0.5.17.
        return {"kv": SimpleNamespace(host_pool=group, device_pool=group.device_pool)}
    return named


def storing(controller: Any) -> Any:
    """Return the host pool that a storage copies to files and back."""
    host = controller.mem_pool_host
    return maybe(host, "anchor_entry.host_pool") or host


def size_of(pool: Any) -> int:
    """Return the number of slots of a host pool, for all ranks that share contexts."""
    return int(getattr(pool, "logical_size", pool.size))


def acks(controller: Any) -> list[Any]:
    """Return the notes of copies whose end the engine has not seen."""
    return [*controller.ack_write_queue, *controller.ack_load_queue]


def at_rest(cache: Any) -> bool:
    """Return whether a prefix cache copies nothing, and no host slot waits to be freed."""
    controller = maybe(cache, "cache_controller")
    queues = [maybe(controller, name) for name in QUEUES]
    queues += (maybe(controller, "extra_host_mem_release_queues") or {}).values()
    waiting = any(queue is not None and not queue.empty() for queue in queues)
    return not waiting and not any(maybe(cache, name) for name in UNDER_WAY)


def slots_of(cache: Any, unfilled: ByObject[Tensor]) -> dict[str, HostSlots]:
    """Return the slots of each host pool of a prefix cache, by name. Raises NotRecognisedError.

    A tree that is not in Python holds no slots that are `unfilled`. Caches of releases before
    0.5.17, with a single host pool, have none.
    """
    group = maybe(cache, "host_pool_group") or maybe(cache, "token_to_kv_pool_host")
    grouped = entries(cache) if maybe(group, "entry_map") else {}
    pools = {name: one.host_pool for name, one in grouped.items() if name in POOLS}
    held: dict[str, list[Tensor]] = {name: [torch.empty(0, dtype=torch.int64)] for name in pools}
    locked = dict.fromkeys(pools, 0)
    for pool in pools.values():
        if not isinstance(maybe(pool, "free_slots"), Tensor):
            raise NotRecognisedError(f"the free slots of a {type(pool).__name__}")
    try:
        nodes = [cache.root_node] if pools else []  # Those of a tree in Rust raise an error.
        for node in nodes:
            nodes += node.children.values()
            for name, part in zip(POOLS, node.component_data, strict=False):
                if part.host_value is not None and name in pools:
                    held[name].append(part.host_value.flatten().cpu())
                    locked[name] += len(part.host_value) * (int(part.host_lock_ref) > 0)
    except NotImplementedError:
        for name, pool in pools.items():
            used, empty = pool.slot_used.cpu(), unfilled.get(pool)
            held[name] = [(used if empty is None else used & ~empty).nonzero().flatten()]
    return {
        f"host {name}": HostSlots(
            size_of(pool),
            torch.cat([pool.free_slots, *getattr(pool, "release_slots", ())]).cpu(),
            torch.cat(held[name]),
            locked[name],
            HOST,
        )
        for name, pool in pools.items()
    }
