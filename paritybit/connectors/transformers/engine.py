"""Follows one paged cache of the engine. `hooks.TARGETS` says what each method wraps."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from paritybit.connectors.following import HOST, Following, alike
from paritybit.connectors.hooking import Call, guarded, maybe
from paritybit.connectors.sampling import MOST, AskedSampling, Recording, chosen, likely_of
from paritybit.connectors.transformers import cache as caches
from paritybit.connectors.transformers.batch import (
    LARGEST_MASK,
    PlannedRequest,
    TransformersBatch,
    buffers_of,
    filled,
    given_of,
    heads,
    implied_inputs,
    inputs_by_name,
    lists_of,
    masks_of,
    on_stream,
    rows,
    statics_of,
    unordered,
    written_on_device,
)
from paritybit.watch.checks.moved_address import fault
from paritybit.watch.facts import Forward, Replay, StaticInput
from paritybit.watch.journal import Journal
from paritybit.watch.lines import LISTS, SLOTS
from paritybit.watch.settings import Settings
from paritybit.watch.watcher import Watcher
from paritybit.watch.weak import Weakly

KIND = "ModelRunner"


class WatchedGraph:
    """A graph of the engine. The sanitizer judges its replays."""

    def __init__(self, engine: "FollowedCache", io: Any, graph: Any) -> None:
        self.engine, self.io, self.graph = engine, io, graph

    def replay(self) -> Any:
        """Replay the graph."""
        watched = functools.partial(self.engine.replay, io=self.io, graph=self.graph)
        return guarded(watched)(self.graph.replay)


class FollowedCache(Following):
    """Follows one PagedAttentionCache. `now` has the runner, the model and the batch."""

    package, inner = "transformers", ("/cache_pool.py",)
    prepared: Any = Weakly()
    watcher: Watcher

    def __init__(self, cache: Any, release: str, journal: Journal, settings: Settings) -> None:
        super().__init__(release, journal, settings)
        self.parts = caches.parts_of(cache)
        self.names = {part.allocator.index: name for name, part in self.parts.items()}
        self.watcher = self.watch(caches.groups_of(self.parts))
        self.planned: list[PlannedRequest] = []
        self.prepared = None
        self.warming = False
        self.graphed = False
        """Whether the current forward replays or captures a graph."""
        self.recording = Recording()
        self.states: WeakValueDictionary[str, Any] = WeakValueDictionary()
        """The last state of each request."""

    def prepare(self, original: Call, io: Any, requests_in_batch: Any) -> None:
        """Note the requests of the next batch, before the engine counts their new tokens."""
        self.prepared = io
        self.planned = [
            PlannedRequest(
                one.state, int(one.state.position_offset), int(one.query_length), one.has_new_token
            )
            for one in requests_in_batch
        ]
        self.prepares(original)

    def warm(self, original: Call, runner: Any) -> None:
        """Note that the forward passes of this call have made-up requests."""
        self.warming = True
        try:
            original()
        finally:
            self.warming = False

    def compute(self, original: Call, runner: Any, model: Any, batch_data: Any) -> None:
        """Watch a forward pass."""
        given: Mapping[str, Any] = batch_data
        with on_stream(runner) as writer:
            planned, self.planned = self.planned, []
            self.forwards += 1
            if not self.watcher.due(*alike(one.computed for one in planned)):
                self.recording.unseen(one.state.request_id for one in planned)
                self.skipped(planned, given, original)
                return
            inputs, early = inputs_by_name(given, self.names), dict[str, Tensor]()
            if writer is not None:
                early = {name: tensor.clone() for name, tensor in inputs.items()}
                writer.synchronize()
            self.judge_cached()
            batch = TransformersBatch(planned, given, self.parts)
            owned = caches.owned(self.parts, batch.written())
            forward = Forward("warmup", (), owned)
            if not self.warming:
                forward = Forward(batch.kind, batch.rows(), owned)
            with self.forward_of((runner, model, batch), forward):
                if self.warming:
                    original()
                    return
                masks = {f"attention_mask[{name}]": one for name, one in masks_of(batch).items()}
                sources = filled(inputs, self.prepared, self.names) | masks
                self.judge(runner, batch, sources, unordered(early, inputs))
                self.run(runner, model, batch, original)

    def judge_cached(self) -> None:
        """Judge whether the engine may evict what no request holds, and nothing else."""
        for name, part in self.parts.items():
            unused, evictable = part.unused(), part.cached()
            if unused or evictable:
                self.watcher.cached(name, part.of_blocks(unused - evictable), 0)
                self.watcher.cached(name, part.of_blocks(()), part.page * len(evictable - unused))

    def skipped(
        self, planned: list[PlannedRequest], given: Mapping[str, Any], run: Callable[[], Any]
    ) -> None:
        """Run a forward that is not checked, and report only the slots that it writes."""
        run()
        count = sum(one.computed for one in planned)
        written = written_on_device(count, given, self.parts)
        shadows = caches.shadows_of(self.parts, written)
        self.watcher.skipped({name: torch.cat((written[name], shadows[name])) for name in written})

    def ended(self, now: Any) -> None:
        """Judge the tokens of a batch, which carries over those of the batch before."""
        batch = now[2]
        if not self.warming:
            ids, positions = batch.given["input_ids"][0], batch.given["position_ids"][0]
            self.watcher.judge_tokens(ids[: batch.size], positions[: batch.size])

    def judge(
        self,
        runner: Any,
        batch: TransformersBatch,
        sources: Mapping[str, Tensor],
        early: list[StaticInput],
    ) -> None:
        """Judge the inputs of a forward. `sources` are the tensors that the engine filled."""
        watcher, processors = self.watcher, runner.logit_processor
        by_name = {
            {"position_ids": "positions"}.get(name, name): one for name, one in sources.items()
        }
        for kind in ("batch", LISTS):
            watcher.lines.note(kind, by_name)
        lists = {n: one for n, one in sources.items() if n.startswith("read_index[")}
        tables = {n.replace("[", " ").removesuffix("]"): one for n, one in lists.items()}
        watcher.lines.note(SLOTS, tables)
        watcher.judge_lists(list(lists_of(batch)))
        implied = list(implied_inputs(batch))
        for one in implied:
            one.copied = sources.get(one.name.partition(" (")[0])
        watcher.judge_inputs("batch", [*implied, *early])
        self.rows("logits processors", rows(batch, processors))
        if any(mask.numel() > LARGEST_MASK for mask in masks_of(batch).values()):
            self.journal.scope(masks_not_watched=f"those of more than {LARGEST_MASK} entries")

    def run(
        self, runner: Any, model: Any, batch: TransformersBatch, run: Callable[[], Any]
    ) -> None:
        """Run a batch. Some without a graph run again, to see which slots they read."""
        # Each row has logits, and no compiled code has a hook. It contains its own processors.
        compiled = runner._compiled_varlen is not None or runner._compiled_decode is not None
        whole = not compiled and all(one.predicted for one in batch.requests)
        ids, self.graphed = batch.given["input_ids"], False
        ranks = torch.distributed.is_available() and torch.distributed.is_initialized()

        def outputs(result: Any) -> dict[str, Tensor]:
            """Return the logits of each row. Tokens are not compared, as they may be drawn."""
            logits = result[-1].get("logits")
            if logits is None or not whole or "logits_to_keep" not in batch.given:
                return {}
            return {"logits": logits[0, : len(batch.requests)]}

        first = self.run_without_graph(
            functools.partial(computed, runner, None if compiled else model, run),
            outputs,
            lambda: not self.graphed,
            graph=runner,
            kind=f"{batch.kind} forward",
            rows=batch.size,
            bucket=batch.padded,
            # The forward changes its input ids: it carries over tokens of the last batch.
            inputs=[StaticInput("input_ids", ids, ids.shape[-1], ids.shape[-1], axis=1)],
            once="it waits for other ranks" if ranks else None,
        )
        noted = {} if self.graphed else first[-1]
        self.rows("logits head", heads(batch, noted, processors_of(runner)))
        mine = [one for one in batch.requests if one.predicted]
        self.states |= {one.state.request_id: one.state for one in mine}
        tokens = first[1][0, : len(mine)].tolist()
        made = [at for at, one in enumerate(mine) if one.computed]
        names, tokens = [mine[at].state.request_id for at in made], [tokens[at] for at in made]
        firsts, likely = [mine[at].cached + mine[at].computed for at in made], None
        scores = noted.get("scores")
        if scores is not None and scores.numel() <= MOST and len(scores[0]) >= len(mine):
            logits = scores[0][made]
            asked = AskedSampling(temperature=1.0 if runner.do_sample else 0.0)
            self.rows("sampler", chosen(names, [asked] * len(names), logits, tokens))
            if maybe(runner, "return_logprobs") and names:
                likely = [[one] for one in likely_of(logits, tokens)]
        self.recording.sampled(names, firsts, [[one] for one in tokens], likely)

    def records(self, original: Call, processor: Any) -> None:
        """Judge which tokens the engine records for the requests of a batch."""
        states = {name: self.states.get(name) for name in self.recording.made}
        original()
        known = {
            name: (len(one.initial_tokens), one.generated_tokens)
            for name, one in states.items()
            if one is not None
        }
        likely = {
            name: dict(enumerate(one.logprobs[-len(one.generated_tokens) :], known[name][0]))
            for name, one in states.items()
            if one is not None
            and 0 < len(one.generated_tokens) <= len(maybe(one, "logprobs") or ())
        }
        self.rows("scheduler", self.recording.recorded(known, likely))

    # Graphs.

    def graph(self, original: Call, io: Any) -> "WatchedGraph | None":
        """Return the engine's graph, wrapped so that its replays are judged."""
        self.graphed = True
        found = original()
        return None if found is None else WatchedGraph(self, io, found)

    def capture(self, result: Any, io: Any, graph: Any) -> None:
        """Note a graph that was captured over the static inputs of a batch."""
        given = [] if self.now is None else given_of(self.now[2])
        held = [StaticInput(name, one, 0, 0) for name, one in buffers_of(io).items()]
        self.watcher.captured(graph, KIND, [*held, *given])

    def replay(self, original: Call, io: Any, graph: Any) -> None:
        """Judge the replay of a graph."""
        if self.now is None or not self.watcher.watching:
            return
        runner, model, batch = self.now
        given = given_of(batch)
        known = self.watcher.captures.get(graph) or {}
        # Else the graph reads and changes other tensors, which are not restored.
        other = any(one.name in known and fault(one, known[one.name]) for one in given)
        once = "the graph reads other tensors than those of the batch" if other else None
        if runner.do_sample:
            once = "it draws tokens at random"
        predicted = batch.predicted

        def outputs() -> dict[str, Tensor]:
            return {"output_ids": io.output_ids[:, :predicted]}

        def eager() -> dict[str, Tensor]:
            arguments = runner.inputs_and_outputs.get_cb_kwargs()
            with noting(runner, model) as noted:
                runner._forward_process_and_sample(model, batch.given, *arguments)
            self.rows("logits head", heads(batch, noted, processors_of(runner)))
            return outputs()

        self.watcher.replay(
            Replay(
                graph,
                KIND,
                batch.size,
                batch.padded,
                [*statics_of(io, batch), *given],
                original,
                outputs,
                eager,
                lambda: [io.output_ids[:, predicted:]],
                once,
            )
        )

    # Blocks.

    def allocate(self, result: Any, pool: Any, index: int) -> None:
        """Note the blocks that the pool allocates."""
        self.note("allocated", index, result or ())

    def free(self, pool: Any, index: int, block_ids: Any) -> None:
        """Note the blocks that the engine frees."""
        self.note("freed", index, block_ids)

    def share(self, original: Call, allocator: Any) -> None:
        """Note the blocks that requests get from the prefix cache, or of another request.

        Judge the blocks of a request that the engine adds to the prefix cache, by its tokens.
        """
        given = (*original.args, *original.kwargs.values())
        names = [one for one in given if isinstance(one, str)]
        before = {name: set(allocator.block_table.get(name, ())) for name in names}
        hashed = set(allocator.ledger.block_to_hash)
        original()
        part = self.parts[self.names[allocator.index]]
        for name, held in before.items():
            table = allocator.block_table.get(name, ())
            self.note("shared", allocator.index, [one for one in table if one not in held])
            added = set(allocator.ledger.block_to_hash) - hashed
            if new := [at for at, one in enumerate(table) if one in added]:
                tokens = next(one for one in given if isinstance(one, list))
                slots = part.of_blocks(table[new[0] : new[-1] + 1])
                tokens = tokens[: (new[-1] + 1) * part.page]
                self.watcher.offered(part.name, name, tokens, slots)

    def note(self, method: str, index: int, blocks: Iterable[int]) -> None:
        """Report the first slots of blocks to the watcher."""
        part, blocks = self.parts[self.names[index]], [*blocks]
        if blocks:
            getattr(self.watcher, method)(part.name, torch.tensor(blocks) * part.page)

    def copy(self, result: Any, cache: Any, copies: Any) -> None:
        """Note the blocks that the engine copies within the cache."""
        for name, (source, target) in copies.items():
            part = self.parts[name]
            self.watcher.copied(name, part.of_blocks(source), part.of_blocks(target))

    def store(self, result: Any, manager: Any, victims: Any, tables: Any) -> None:
        """Note the blocks of requests that the engine copies to the host."""
        for request in result:
            for name, blocks in manager._request_id_to_cpu_blocks[request].items():
                part = self.parts[name]
                slots = part.of_blocks(tables[request][name])
                self.watcher.store(HOST, name, slots, part.of_blocks(blocks))

    def load(self, original: Call, manager: Any, requests: Any) -> None:
        """Note the blocks that the engine copies from the host to requests' first blocks."""
        names = [one.state.request_id for one in requests if one.state.is_cpu_offloaded]
        tables = {name: manager._request_id_to_cpu_blocks[name] for name in names}
        original()
        for request, stored in tables.items():
            for name, blocks in stored.items():
                part = self.parts[name]
                mine = part.allocator.block_table.get(request, [])[: len(blocks)]
                places = part.of_blocks(blocks[: len(mine)])
                self.watcher.load(HOST, name, part.of_blocks(mine), places)

    def idle(self, result: Any, processor: Any) -> None:
        """Judge which slots are free or cached, once after each forward, if nothing runs."""
        if result or processor.has_pending_requests() or not self.idle_since(self.forwards):
            return
        locked = {
            name: part.page * len(part.allocator.ledger.shared_ref_counts)
            for name, part in self.parts.items()
        }
        slots = caches.free_and_cached(self.parts, processor.cache.pool)
        hosts = caches.on_host(processor.offloading_manager._cpu_pool)
        self.watcher.idle(slots, locked, hosts=hosts)


def processors_of(runner: Any) -> Sequence[Any]:
    """Return what changes the logits before a runner samples."""
    held = maybe(runner, "logit_processor")
    return [*held.logits_processor] if maybe(held, "do_processing") else []


def computed(runner: Any, model: Any, run: Callable[[], Any]) -> tuple[Any, ...]:
    """Run a batch. Returns its result, the output ids that it wrote, and what `model` computed."""
    with noting(runner, model) as noted:
        result = run()
    return result, runner.inputs_and_outputs.get_cb_kwargs()[-1], noted


@contextmanager
def noting(runner: Any, model: Any) -> Iterator[dict[str, Tensor]]:
    """Note what a model computes, and what the runner samples from."""
    noted, hooks = dict[str, Tensor](), list[Any]()

    def note(name: str, one: Any) -> None:
        if isinstance(one, Tensor):
            noted[name] = one

    sample = maybe(runner, "_sample")

    def sampling(scores: Tensor, *others: Any) -> Any:
        note("scores", scores)
        return sample(scores, *others)

    if model is not None:
        vars(runner)["_sample"] = sampling
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        base = maybe(model, "base_model")
        hooks = [model.register_forward_hook(lambda *one: note("logits", maybe(one[-1], "logits")))]
        if base is not None and head is not None:
            of = lambda *one: note("hidden", maybe(one[-1], "last_hidden_state"))  # noqa: E731
            hooks += [base.register_forward_hook(of)]
            hooks += [head.register_forward_pre_hook(lambda *one: note("given", one[-1][0]))]
    try:
        yield noted
    finally:
        vars(runner).pop("_sample", None)
        for hook in hooks:
            hook.remove()
