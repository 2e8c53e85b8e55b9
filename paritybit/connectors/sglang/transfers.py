"""Follows KV that an engine for prefill transfers to one for decode, in each of both processes.

A transfer is under way from its submission until the engine acts on its end. What the ledger of the
one process knows of each page crosses to the other one by the engine's own sockets.
"""

import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.failures import report
from paritybit.connectors.following import HOST, pages
from paritybit.connectors.hooking import Call, maybe
from paritybit.connectors.sampling import handed_on, row_sums
from paritybit.connectors.sglang.drafts import BEGUN, DraftStates
from paritybit.connectors.sglang.host import Hosts, at_rest
from paritybit.connectors.sglang.pools import SglangPool
from paritybit.watch.facts import FORWARDS, At, Copy, HostSlots, RowValues
from paritybit.watch.observations import EngineError
from paritybit.watch.watcher import Watcher
from paritybit.watch.weak import ByObject

PEER = "peer"
"""The pool that stands for the KV of the other engine."""

NOWHERE = At(torch.empty(0, dtype=torch.int64), PEER)

TAG = b"paritybit"
"""The first part of our own messages, and the last one of the decode engine's registration."""

FAILED, SUCCESS = 0, 4
"""The engine's numbers for a transfer that is over."""


Brought = tuple[dict[str, Any], Tensor]
"""What the ledger of the other engine knows of slots: which ones, and its columns."""


class Transfers(Hosts):
    """The part of an engine that reports transfers between prefill and decode."""

    backends: Sequence[str] = ()
    """The backends whose transfers are followed in this release."""
    pool: SglangPool | None
    models: dict[int, Any]
    start: Callable[[Any, Sequence[Any]], Watcher]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.apart = False
        """Whether the transfers of this engine are followed."""
        self.peers = set[tuple[bytes, bytes]]()
        """The addresses and ports of the watched engines for decode."""
        self.sent: dict[int, list[str]] = {}
        """By room, the names of the transfers that have begun."""
        self.draft_states = DraftStates()
        self.states_sent: ByObject[int] = ByObject()
        """The checksum of each tensor of hidden states that a transfer brought, as it was sent."""
        self.first: dict[int, tuple[int, int | None]] = {}
        """By room, the first token of its request, and the checksum of the hidden states with which
        its drafts begin."""
        self.awaits: dict[int, dict[str, Tensor]] = {}
        """By room, the slots of each group that a transfer fills, in the order of positions."""
        self.brought: dict[int, list[Brought]] = {}
        """By room, what the other engine knows of these."""
        self.buffers: Callable[[], Any] = lambda: None
        """Returns the allocator of metadata buffers."""
        self.offloader: Callable[[], Any] = lambda: None
        """Returns what copies KV to the host while requests decode."""

    def follow_transfers(self, scheduler: Any) -> None:
        """Record the allocator of metadata buffers, and what copies KV while requests decode."""
        if (found := maybe(scheduler, "req_to_metadata_buffer_idx_allocator")) is not None:
            self.buffers = weakref.ref(found)
        if (copier := maybe(scheduler, "decode_offload_manager")) is not None:
            self.offloader = weakref.ref(copier)
            if (name := self.names.get(copier.kv_cache)) is not None:
                self.names[copier.decode_host_mem_pool] = name

    def on_host(self, cache: Any) -> dict[str, HostSlots]:
        """Return the slots of the host pools, and the metadata buffers of transfers."""
        found, buffers, copier = super().on_host(cache), self.buffers(), self.offloader()
        if copier is not None and at_rest(copier):
            pool = copier.decode_host_mem_pool
            free = torch.cat([pool.free_slots, *getattr(pool, "release_slots", ())]).cpu()
            found["host of decoding"] = HostSlots(int(pool.size), free, free[:0], pool=HOST)
        if buffers is not None:
            free = torch.tensor([*buffers.free_slots], dtype=torch.int64)
            found["metadata buffers"] = HostSlots(buffers.size, free, free[:0], pool=PEER)
        return found

    def slots_of(self, manager: Any, kv: Any, states: Sequence[Any] | None) -> dict[str, Tensor]:
        """Return the slots of pages of KV, and of the states of a transfer, by group."""
        pool, page = self.pool, int(manager.kv_args.page_size)
        assert pool is not None
        given = {pool.group_of(sliding=False): kv}
        if maybe(manager, "kv_args.num_draft_entries"):  # They have the slots of their target.
            drafts = [one.pool for one in self.models.values() if one.drafts]
            given |= {one.group_of(sliding=False): kv for one in drafts}
        for kind, one in zip(manager.kv_args.state_types, states or (), strict=False):
            if str(getattr(kind, "value", kind)) == "swa":
                given[pool.sliding] = one
            else:
                self.journal.undecided(f"transfers of states of the kind {kind} are not watched")
        return {
            name: pages(torch.as_tensor(one).long(), page)
            for name, one in given.items()
            if name is not None and one is not None and len(one)
        }

    # The engine for prefill.

    def keeps_first(self, buffers: Any, request: Any) -> None:
        """Note with what a request begins, before that is put in a metadata buffer."""
        if request.bootstrap_room is not None:
            dtype = maybe(request, "hidden_states_tensor.dtype")
            exact = dtype == maybe(buffers, "output_hidden_states.dtype")
            drafts = self.draft_states.last(request.rid) if exact else None
            self.first[request.bootstrap_room] = int(request.output_ids[0]), drafts

    def sends(self, sender: Any, kv_indices: Any, state_indices: Any = None) -> None:
        """Report pages that a transfer reads, and tell the other engine what they hold."""
        watcher, manager, room = self.watcher, sender.kv_mgr, sender.bootstrap_room
        if watcher is None or not self.apart or sender.conclude_state is not None:
            return
        found = self.slots_of(manager, kv_indices, state_indices)
        first, drafts = self.first.get(room, (None, None))
        mine = self.sent.setdefault(room, [])
        mine.append(f"transfer {room} {len(mine)}")
        after = self.followed_by(maybe(sender, "_early_send_wait_event.known") or {})
        copies = [
            Copy(name, At(slots), NOWHERE, queue=PEER, after=after) for name, slots in found.items()
        ]
        watcher.begin_copies(mine[-1], copies)
        targets = manager.transfer_infos.get(room, {}).values()
        sliding = None if self.pool is None else self.pool.sliding
        for name, slots in found.items():
            start = 0 if name == sliding else sender.curr_idx * manager.kv_args.page_size
            known, about = watcher.described(name, slots)
            about |= {
                "room": room,
                "group": name,
                "start": start,
                "first": first,
                "drafts": drafts,
                "slots": len(slots),
            }
            parts = [TAG, json.dumps(about).encode(), known.numpy().tobytes()]
            for one in targets:
                if (one.endpoint.encode(), str(one.dst_port).encode()) in self.peers:
                    manager._send_multipart_locked(f"tcp://{one.endpoint}:{one.dst_port}", parts)

    def sees_end(self, result: Any, sender: Any) -> None:
        """Report the end of the transfers of a request."""
        if result in (FAILED, SUCCESS):
            self.concludes(sender)

    def concludes(self, sender: Any) -> None:
        """Report that the engine gave up the transfers of a request, or saw their end."""
        self.first.pop(sender.bootstrap_room, None)
        for name in self.sent.pop(sender.bootstrap_room, ()):
            if self.watcher is not None:
                self.watcher.end_copies(name)

    # The engine for decode.

    def registers(self, result: Any, manager: Any) -> Any:
        """Add to the registration that this engine is watched."""
        return [*result, TAG]

    def receives(self, result: Any, manager: Any) -> Any:
        """Return the function that a thread receives messages with, which keeps our own."""

        def receive() -> Any:
            while (message := result()) is not None and message[0] == TAG:
                about = json.loads(message[1])
                if about["room"] in self.awaits:
                    numbers = torch.frombuffer(bytearray(message[2]), dtype=torch.int64)
                    known = numbers.view(-1, about["slots"])
                    self.brought.setdefault(about["room"], []).append((about, known))
            if message is not None and message[0] == b"None" and message[-1] == TAG:
                self.peers.add((message[1], message[2]))
            return message

        return receive

    def prepares_transfer(self, queue: Any, one: Any) -> None:
        """Start the watcher, if a transfer begins before the first batch."""
        if self.watcher is None:
            self.watcher = self.start(queue.scheduler, ())

    def expects(
        self, receiver: Any, kv_indices: Any, aux_index: Any = None, state_indices: Any = None
    ) -> None:
        """Report slots that a transfer fills from now on."""
        watcher, room = self.watcher, receiver.bootstrap_room
        if watcher is None or not self.apart:
            return
        self.awaits[room] = found = self.slots_of(receiver.kv_mgr, kv_indices, state_indices)
        # What is sent comes long after the forwards that were launched before.
        copies = [
            Copy(name, NOWHERE, At(slots), after=(FORWARDS,)) for name, slots in found.items()
        ]
        watcher.begin_copies(f"transfer {room}", copies)

    def commits(self, original: Call, queue: Any, one: Any) -> None:
        """Report what a transfer brought, when the engine takes it for its request."""
        request, room = one.req, one.req.bootstrap_room
        replayed = maybe(request, "pd_rebootstrap_forced_output_id") is not None
        original()
        reason, brought = request.finished_reason, self.brought.pop(room, [])
        self.ends(room, brought, failed=reason is not None)
        if reason is not None:
            found = EngineError(self.forwards, "the metadata of another request", str(reason))
            report(found, self.journal, self.settings)
            return
        first = {about["first"] for about, _ in brought} - {None}
        if len(first) == 1 and not replayed:
            given = torch.tensor([request.output_ids[-1]]), torch.tensor([*first])
            self.rows("transfer", [RowValues("the first token", [request.rid], *given)])
        drafts = {about["drafts"] for about, _ in brought} - {None}
        sent = drafts.pop() if len(drafts) == 1 else None
        self.draft_states.brought(request.rid, sent)
        if sent is not None and (states := maybe(request, "hidden_states_tensor")) is not None:
            self.states_sent[states] = sent

    def begins(self, batch: Any) -> None:
        """Judge the hidden states with which requests begin to draft, also again.

        Those of a request that was retracted are older than what the draft model returned last.
        """
        given = {one.rid: maybe(one, "hidden_states_tensor") for one in batch.reqs}
        sent = {name: self.states_sent.get(one) for name, one in given.items() if one is not None}
        names = [name for name, one in sent.items() if one is not None]
        if names:
            sums = row_sums(torch.stack([given[name] for name in names]))
            known = torch.tensor([sent[name] for name in names])
            whose = [f"what was sent for request {name}" for name in names]
            self.rows("draft", handed_on(BEGUN, names, sums, range(len(names)), known, whose))
        for one in batch.reqs:
            if getattr(one, "retraction_count", 1):
                self.draft_states.brought(one.rid, None)

    def releases(self, queue: Any, one: Any) -> None:
        """Report that the engine knows that nothing writes to the slots of a failed transfer."""
        self.brought.pop(one.req.bootstrap_room, None)
        self.ends(one.req.bootstrap_room, failed=True)

    def ends(self, room: int, brought: Sequence[Brought] = (), *, failed: bool) -> None:
        """Report the end of a transfer, and what it brought unless it failed."""
        watcher, awaited = self.watcher, self.awaits.pop(room, None)
        if watcher is None or awaited is None:
            return
        watcher.end_copies(f"transfer {room}", failed)
        if failed:
            return
        if not brought:
            self.journal.undecided("what an engine for prefill holds that is not watched")
        for name, slots in awaited.items():
            left = torch.ones_like(slots, dtype=torch.bool)
            for about, known in brought:
                if about["group"] == name:
                    mine = slots[about["start"] :][: about["slots"]]
                    left[about["start"] :][: about["slots"]] = False
                    watcher.received(name, mine, known[:, : len(mine)], about)
            if brought:
                watcher.failed(name, At(slots[left]))
            else:
                watcher.forget(name, slots)
