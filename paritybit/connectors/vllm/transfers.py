"""KV that an engine for prefill offers and one for decode pulls, each followed in its own process.

An offer is under way until the engine for prefill sees that it was read, or gives it up. What its
ledger knows of the offered blocks goes to the other process by the engine's own message, which a
router hands on.
"""

import base64
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import Call, NotRecognisedError, maybe
from paritybit.connectors.vllm.caching import Caching
from paritybit.connectors.vllm.requests import Request, space_of
from paritybit.connectors.vllm.scheduling import MESSAGE, PULLED
from paritybit.watch.facts import At, Copy, HostSlots

PACKAGE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"

PEER = "peer"
"""The pool that stands for the KV of the other engine."""

NOWHERE = At(torch.empty(0, dtype=torch.int64), PEER)

Pulled = tuple[Sequence[Sequence[int]], Sequence[Sequence[int]], Request, Any]
"""Blocks of each group, those that they are read from, the request, and the message."""


class Transfers(Caching):
    """The part of an engine that follows transfers between engines."""

    runner: Any
    trimmed: Any = None
    """The blocks of each group that the current transfer fills and reads."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.pulled = dict[str, Pulled]()
        """By request, what a transfer under way brings."""
        self.pulls_kv = False

    def connects(self, config: Any) -> None:
        """Follow the connector of an engine if it is one that pulls."""
        self.pulls_kv = maybe(config, "kv_transfer_config.kv_connector") == PULLED
        if not self.pulls_kv:
            return
        ranks = config.parallel_config
        if any(getattr(ranks, f"{name}_parallel_size", 1) > 1 for name in ("tensor", "pipeline")):
            raise NotRecognisedError("transfers between several ranks")
        for module, kind, name, method in (
            ("pull_scheduler", "NixlPullConnectorScheduler", "request_finished", self.offers),
            ("pull_worker", "NixlPullConnectorWorker", "_read_blocks", self.pulls),
            ("base_worker", "NixlBaseConnectorWorker", "_apply_prefix_caching", self.trims),
            ("base_worker", "NixlBaseConnectorWorker", "get_transfer_results", self.arrives),
        ):
            self.hook(getattr(importlib.import_module(f"{PACKAGE}.{module}"), kind), name, method)

    # The engine for prefill.

    def offers(self, result: Any, scheduler: Any, request: Any) -> None:
        """Report blocks that the other engine may read, and tell it what they hold."""
        self.complete()
        _, told = result
        blocks = sorted(
            {one for group in (told or {}).get("remote_block_ids", ()) for one in group}
        )
        if not blocks or self.watcher is None or self.pool is None:
            return
        slots = self.pool.slots(blocks)
        copies = [Copy(name, At(slots), NOWHERE, queue=PEER) for name in self.pool.names]
        self.watcher.begin_copies(f"offer {request.request_id}", copies)
        groups = dict[str, tuple[str, Mapping[str, Any]]]()
        for name in self.pool.names:
            known, about = self.watcher.described(name, slots)
            groups[name] = base64.b64encode(known.numpy().tobytes()).decode(), about
        told[MESSAGE] = {"blocks": blocks, "groups": groups}

    # The engine for decode.

    def trims(self, result: Any) -> None:
        """Note which blocks a transfer fills, and which it reads."""
        self.trimmed = result

    def pulls(self, original: Call, worker: Any) -> None:
        """Report blocks that a transfer fills from now on."""
        request_id, self.trimmed = original.arguments["request_id"], None
        posted = original()
        if self.watcher is None:  # No forward may have run before.
            with torch.inference_mode(False):
                self.watcher = self.start(self.runner)
        if self.watcher is None or self.pool is None or not posted or self.trimmed is None:
            return
        with self.needing():
            if maybe(worker, "_physical_blocks_per_logical_kv_block") != 1:
                raise NotRecognisedError("blocks of a kernel")
            mine, theirs = self.trimmed
            one = self.scheduler.requests[request_id]
            request = Request([], 0, all_token_ids=list(one.all_token_ids))
            request.cache_salt, request.lora_request = one.cache_salt, one.lora_request
            told = (one.kv_transfer_params or {}).get(MESSAGE)
            self.pulled[request_id] = mine, theirs, request, told
            copies = [Copy(name, NOWHERE, At(slots)) for name, slots in self.filled_by(mine)]
            self.watcher.begin_copies(f"transfer {request_id}", copies)

    def filled_by(self, blocks: Sequence[Sequence[int]]) -> Iterable[tuple[str, Tensor]]:
        """Yield the slots of each KV group in blocks of the engine's groups."""
        assert self.pool is not None
        for name in self.pool.names:
            parts = [self.pool.slots(blocks[one.number]) for one in self.pool.targets]
            yield name, torch.cat(parts)

    def arrives(self, original: Call, worker: Any) -> None:
        """Report the transfers that the engine sees to be over, on both sides."""
        self.complete()
        found = original()
        self.over(f"offer {name}" for name in found.finished_sending)
        for name in found.finished_recving:
            self.ends(name, failed=name in found.failed_recving)

    def ends(self, name: str, *, failed: bool) -> None:
        """Report the end of a transfer, and what it brought unless it failed."""
        watcher, pulled = self.watcher, self.pulled.pop(name, None)
        if watcher is None or self.pool is None or pulled is None:
            return
        mine, theirs, request, told = pulled
        watcher.end_copies(f"transfer {name}", failed)
        if failed:
            return
        if told is None:
            self.journal.undecided("what an engine for prefill holds that is not watched")
            for kind, slots in self.filled_by(mine):
                watcher.forget(kind, slots)
            return
        offered = torch.tensor(told["blocks"])
        for place, group in enumerate(self.pool.targets):
            slots = self.pool.slots(mine[group.number])
            rows = torch.searchsorted(offered, torch.tensor(theirs[group.number]).long())
            if rows.numel() == 0:
                continue
            of = f"{name} in group {group.number}" if place else name
            row = of, request.all_token_ids, f"{place} {space_of(request)}"
            for kind in group.names:
                text, about = told["groups"][kind]
                known = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.int64)
                known = known.view(-1, len(offered), self.pool.page)[:, rows].flatten(1)
                watcher.received(kind, slots, *watcher.renamed(known, about, row))

    def caches(self) -> Mapping[str, HostSlots]:
        """Return also that no transfer runs while no request is left."""
        none = torch.empty(0, dtype=torch.int64)
        more = {"transfers": HostSlots(0, none, none, pool=PEER)} if self.pulls_kv else {}
        return {**super().caches(), **more}

    def start(self, runner: Any) -> Any:
        """Start the watcher."""
        raise NotImplementedError
