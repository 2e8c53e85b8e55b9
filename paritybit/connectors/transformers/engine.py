"""Follows one paged cache and reports to its watcher what happens, in order.

Each method that `hooks` names wraps one function of the engine. It gets the original function, then
the arguments of the call.
"""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.hooking import guarded
from paritybit.connectors.repeated import attribute
from paritybit.connectors.transformers import cache as caches
from paritybit.connectors.transformers import streams
from paritybit.connectors.transformers.batch import Batch, Planned, written_on_device
from paritybit.connectors.transformers.eager import run_batch
from paritybit.connectors.transformers.inputs import (
    LARGEST_MASK,
    given_of,
    laws_of,
    lists_of,
    masks_of,
    statics_of,
)
from paritybit.connectors.transformers.sampling import Judged, logits, rows
from paritybit.connectors.transformers.sources import called_at
from paritybit.watch.checks.moved_address import fault
from paritybit.watch.facts import Forward, Replay
from paritybit.watch.journal import Journal
from paritybit.watch.lines import SLOTS
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import LISTS, Watcher
from paritybit.watch.weak import Weakly

Original = Callable[..., Any]

KIND = "ModelRunner"
"""The engine's class that replays graphs."""


class Graph:
    """A graph of the engine. The sanitizer judges its replays."""

    def __init__(self, engine: "Engine", io: Any, graph: Any) -> None:
        self.engine, self.io, self.graph = engine, io, graph

    def replay(self) -> Any:
        """Replay the graph."""
        watched = functools.partial(self.engine.replay, io=self.io, graph=self.graph)
        return guarded(watched)(self.graph.replay)


class Engine:
    """Follows one PagedAttentionCache, and keeps no reference to it.

    `prepared` holds the inputs that the engine has prepared last, maybe on the host.
    """

    prepared: Any = Weakly()

    def __init__(self, cache: Any, release: str, journal: Journal, settings: Settings) -> None:
        self.parts = caches.parts_of(cache)
        self.names = {part.allocator.index: name for name, part in self.parts.items()}
        self.watcher = Watcher(
            caches.groups_of(self.parts),
            engine="transformers",
            release=release,
            journal=journal,
            settings=settings,
        )
        self.watcher.listen("ContinuousBatchingLogger")
        self.planned: list[Planned] = []
        self.prepared = None
        self.warming = False
        self.forwards, self.idle_at = 0, 0
        self.now: tuple[Any, Any, Batch] | None = None
        self.graphed = False
        """Whether the forward under way replays or captures a graph."""

    def prepare(
        self, original: Original, io: Any, requests_in_batch: Any, *args: Any, **kw: Any
    ) -> Any:
        """Note the requests of the next batch, before the engine counts their new tokens."""
        self.planned = [
            Planned(
                one.state, int(one.state.position_offset), int(one.query_length), one.has_new_token
            )
            for one in requests_in_batch
        ]
        self.prepared = io
        with self.watcher.lines.learning():
            return original(io, requests_in_batch, *args, **kw)

    def compute(
        self, original: Original, runner: Any, model: Any, batch_data: Any, *args: Any, **kw: Any
    ) -> Any:
        """Watch a forward pass."""
        run = functools.partial(original, runner, model, batch_data, *args, **kw)
        with streams.on_stream(runner) as writer:
            return self.forward(runner, model, batch_data, run, writer)

    def warm(self, original: Original, runner: Any, *args: Any, **kwargs: Any) -> Any:
        """Note that the forward passes of this call have made-up requests."""
        self.warming = True
        try:
            return original(runner, *args, **kwargs)
        finally:
            self.warming = False

    def forward(
        self,
        runner: Any,
        model: Any,
        given: Mapping[str, Any],
        run: Callable[[], Any],
        writer: Any,
    ) -> Any:
        """Watch a forward pass. `writer` is the stream that writes its inputs, or None."""
        watcher, planned = self.watcher, self.planned
        self.planned, self.forwards = [], self.forwards + 1
        if not watcher.due():
            result = run()
            count = sum(one.computed for one in planned)
            written = written_on_device(count, given, self.parts)
            shadows = caches.shadows_of(self.parts, written)
            watcher.skipped({name: torch.cat((written[name], shadows[name])) for name in written})
            return result
        inputs, early = streams.inputs_of(given, self.names), dict[str, Tensor]()
        if writer is not None:
            early = streams.copied(inputs)
            writer.synchronize()
        batch = Batch(planned, given, self.parts)
        owned = caches.owned(self.parts, batch.written())
        if self.warming:
            watcher.begin(Forward("warmup", (), owned))
        else:
            watcher.begin(Forward(batch.kind, batch.rows(), owned))
            filled = streams.filled(inputs, self.prepared, self.names)
            self.note_lines(filled)
            watcher.lists(list(lists_of(batch)))
            laws = list(laws_of(batch))
            for one in laws:
                one.copied = filled.get(one.name.partition(" (")[0])
            watcher.inputs("batch", [*laws, *streams.unordered(early, inputs)])
            if hasattr(runner.logit_processor, "prepare_tensor_args"):
                watcher.rows("logits processors", list(rows(batch, runner.logit_processor)))
            if any(mask.numel() > LARGEST_MASK for mask in masks_of(batch).values()):
                watcher.scope(masks_not_watched=f"those of more than {LARGEST_MASK} entries")
        self.now = runner, model, batch
        try:
            with self.judging(runner, batch):
                result = run() if self.warming else run_batch(self, runner, model, batch, run)
        except BaseException:
            watcher.abandon()
            raise
        finally:
            self.now = None
        if not self.warming:  # Tokens of the batch before are carried over by this one.
            ids, positions = given["input_ids"][0], given["position_ids"][0]
            watcher.tokens(ids[: batch.size], positions[: batch.size])
        watcher.end()
        return result

    def note_lines(self, inputs: Mapping[str, Tensor]) -> None:
        """Note the tensors from which the inputs of a forward pass are judged."""
        same = {"position_ids": "positions"}
        for kind in ("batch", LISTS):
            given = {same.get(name, name): tensor for name, tensor in inputs.items()}
            self.watcher.lines.note(kind, given)
        tables = {
            f"{name.partition('[')[0]} {name.partition('[')[2][:-1]}": one
            for name, one in inputs.items()
            if name.startswith("read_index[")
        }
        self.watcher.lines.note(SLOTS, tables)

    def judging(self, runner: Any, batch: Batch) -> AbstractContextManager[None]:
        """Judge the logits before and after the logits processors, within this context.

        A compiled forward and a graph contain their own processors, and are left alone.
        """
        processors = getattr(runner, "logit_processor", None)
        compiled = any(getattr(runner, f"_compiled_{path}", True) for path in ("varlen", "decode"))
        if self.warming or compiled or processors is None:
            return nullcontext()

        def judge(raw: Tensor, result: Tensor) -> None:
            values = list(logits(batch, processors, raw, result))
            self.watcher.rows("logits processors", values)

        return attribute(runner, "logit_processor", Judged(processors, judge))

    # Graphs.

    def graph(self, original: Original, io: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the engine's graph, wrapped so that its replays are judged."""
        self.graphed = True
        found = original(io, *args, **kwargs)
        return None if found is None else Graph(self, io, found)

    def capture(self, original: Original, io: Any, graph: Any, *args: Any, **kw: Any) -> Any:
        """Note a graph that was captured over the static inputs of a batch."""
        result = original(io, graph, *args, **kw)
        given = [] if self.now is None else given_of(self.now[2])
        self.watcher.captured(graph, KIND, [*statics_of(io, None), *given])
        return result

    def replay(self, original: Original, io: Any, graph: Any) -> Any:
        """Replay a graph, and judge it."""
        if self.now is None or not self.watcher.watching:
            return original()
        runner, model, batch = self.now
        statics, given = statics_of(io, batch), given_of(batch)
        count, padded = batch.size, batch.padded
        known = self.watcher.captures.get(graph) or {}
        # Else the graph reads and changes other tensors, which are not restored.
        other = any(one.name in known and fault(one, known[one.name]) for one in given)
        once = "the graph reads other tensors than those of the batch" if other else None
        if getattr(runner, "do_sample", False):
            once = "it draws tokens at random"
        predicted = sum(one.predicted for one in batch.requests)

        def outputs() -> dict[str, Tensor]:
            return {"output_ids": io.output_ids[:, :predicted]}

        def eager() -> dict[str, Tensor]:
            arguments = runner.inputs_and_outputs.get_cb_kwargs()
            runner._forward_process_and_sample(model, batch.given, *arguments)
            return outputs()

        return self.watcher.replay(
            Replay(
                graph, KIND, count, padded, [*statics, *given], original, outputs, eager,
                lambda: [io.output_ids[:, predicted:]], once,
            )
        )  # fmt: skip

    # Blocks.

    def allocate(self, original: Original, pool: Any, index: int, *args: Any, **kwargs: Any) -> Any:
        """Note the blocks that the pool allocates."""
        blocks = original(pool, index, *args, **kwargs)
        if blocks:
            part = self.parts[self.names[index]]
            slots = torch.tensor(list(blocks)) * part.page
            self.watcher.allocated(part.name, slots, called_at())
        return blocks

    def free(
        self, original: Original, pool: Any, index: int, block_ids: Any, *args: Any, **kw: Any
    ) -> Any:
        """Note the blocks that the engine frees."""
        if block_ids:
            part = self.parts[self.names[index]]
            slots = torch.tensor(list(block_ids)) * part.page
            self.watcher.freed(part.name, slots, called_at())
        return original(pool, index, block_ids, *args, **kw)

    def copy(self, original: Original, cache: Any, copies: Any, *args: Any, **kw: Any) -> Any:
        """Note the blocks that the engine copies within the cache."""
        result = original(cache, copies, *args, **kw)
        for name, (source, target) in copies.items():
            part = self.parts[name]
            self.watcher.copied(name, part.of_blocks(source), part.of_blocks(target), called_at())
        return result

    def store(
        self, original: Original, manager: Any, victims: Any, tables: Any, *args: Any, **kw: Any
    ) -> Any:
        """Note the blocks of requests that the engine copies to the host."""
        requests = original(manager, victims, tables, *args, **kw)
        for request in requests:
            for name, blocks in tables[request].items():
                self.watcher.store(request, name, self.parts[name].of_blocks(blocks))
        return requests

    def load(self, original: Original, manager: Any, requests: Any, *args: Any, **kw: Any) -> Any:
        """Note the blocks that the engine copies from the host to the first blocks of requests."""
        names = [one.state.request_id for one in requests if one.state.is_cpu_offloaded]
        tables = {name: manager._request_id_to_cpu_blocks[name] for name in names}
        result = original(manager, requests, *args, **kw)
        for request, stored in tables.items():
            for name, blocks in stored.items():
                part = self.parts[name]
                mine = part.allocator.block_table.get(request, [])[: len(blocks)]
                self.watcher.load(request, name, part.of_blocks(mine))
        return result

    # Idle moments.

    def idle(self, original: Original, processor: Any, *args: Any, **kwargs: Any) -> Any:
        """Judge which slots are free or cached, once after each forward pass, if nothing runs."""
        result = original(processor, *args, **kwargs)
        if result or processor.has_pending_requests() or self.idle_at == self.forwards:
            return result
        self.idle_at = self.forwards
        locked = {
            name: part.page * len(part.allocator.ledger.shared_ref_counts)
            for name, part in self.parts.items()
        }
        pool = processor.cache.pool
        self.watcher.idle(caches.free_and_cached(self.parts, pool), locked)
        return result
