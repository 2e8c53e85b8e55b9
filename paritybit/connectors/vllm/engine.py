"""Follows the engine in this process. Each method that `hooks` names wraps functions of it."""

import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.failures import judge
from paritybit.connectors.following import (
    alike,
    attributes,
    expected,
    implied_by,
    in_dimensions,
    tensors,
    whole,
)
from paritybit.connectors.hooking import Call, maybe
from paritybit.connectors.sampling import HIDDEN, embedded, handed_on, row_sums
from paritybit.connectors.sharing import Share, parted
from paritybit.connectors.vllm import batch as batches
from paritybit.connectors.vllm.attention import Attended
from paritybit.connectors.vllm.drafting import draft_layers
from paritybit.connectors.vllm.moving import unfollowed
from paritybit.connectors.vllm.pools import VllmPool, described
from paritybit.connectors.vllm.requests import unjudged
from paritybit.connectors.vllm.sampling import content_of, model_of
from paritybit.connectors.vllm.scheduling import FILED, MESSAGE
from paritybit.connectors.vllm.states import VllmStates
from paritybit.watch.captures import Captures
from paritybit.watch.facts import PIECES, Base, Forward, Replay
from paritybit.watch.journal import of_process
from paritybit.watch.lines import LISTS
from paritybit.watch.watcher import Watcher

SCOPE = {
    "cache_config": ("block_size", "enable_prefix_caching", "cache_dtype"),
    "scheduler_config": (
        *("max_num_seqs", "max_num_batched_tokens", "async_scheduling"),
        "enable_chunked_prefill",
    ),
    "compilation_config": ("cudagraph_mode", "cudagraph_capture_sizes"),
    "model_config": ("model",),
    "speculative_config": ("method", "num_speculative_tokens"),
}
"""Settings of the engine that are reported if a release has them."""

PREPARED = "input_batch", "slot_mappings", "kv_cache_config"
"""Arguments from which the newer runner's attention metadata is built."""

AXES = {"dp": "_DP", "pp": "_PP", "cp": "_PCP", "tp": "_TP"}
"""The kinds of ranks, and the names of their groups."""

STORES = "it stores KV in files"
"""Why a forward with the connector FILED may run only once."""

TOGETHER = "it waits for other ranks"
"""Why a forward of several ranks may run only once."""

ENGINES = "PARITYBIT_ENGINES_STARTED"
"""The environment variable with the number of data-parallel engines that the command started."""

EFFECTS = {
    "parallel_config.enable_eplb": "it counts the load of experts",
    "model_config.enable_return_routed_experts": "it records the experts of tokens",
    "cache_config.calculate_kv_scales": "it sets the scales of KV",
}
"""Settings that give a forward pass an effect of its own, so it may run only once."""

WARM_UP = 100
"""The most forwards that a runner computes before a scheduler exists."""

RANKS = "vllm.distributed.parallel_state"


@dataclass
class VllmForward:
    """The current forward: its runner, the output of the scheduler, and the facts about it."""

    runner: Any
    output: Any
    forward: Forward | None = None
    batch: batches.VllmBatch | None = None
    bases: Sequence[tuple[Base, Mapping[str, Tensor] | None]] = ()
    """Those of the forward, each with the inputs that it implies."""
    wrapped: Call | None = None
    """The call of the wrapper of the graph that replays."""
    pieces: int | None = None
    """The number of tokens of the replayed graphs of parts of the model, or None."""
    called: bool = False
    """Whether the model was called without a graph that holds all of it."""
    ran: bool = False
    """Whether the model, or a graph of it, has run."""
    received: bool = False
    """Whether the hidden states that the model gets from the stage before were reported."""
    go: Callable[[], None] | None = None
    """Begins the forward, once the engine has loaded what it reads."""
    whole: Callable[[], Any] | None = None
    """Runs the newer runner's model without the graph that holds all of it."""

    @property
    def live(self) -> int:
        """The number of tokens that it computes."""
        return 0 if self.batch is None else self.batch.live[1]


class VllmEngine(Attended):
    """The engine in this process, whose model `runner` runs."""

    package = "vllm"
    places: tuple[list[int], list[tuple[str, int]]] | None = None
    """Where this rank's tokens are in the last batch, and the request and the position of each of
    all tokens, if ranks split it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.runner = None
        self.drop()

    def drop(self) -> None:
        """Stop watching, and forget all that is known, unless the runner is still there."""
        if self.runner is None:
            self.forget()
            self.captures = Captures(self.journal)
            self.capturing: batches.VllmBatch | None = None
            self.unscheduled = 0
            self.states: VllmStates | None = None
            self.error = None
            self.once: str | None = None
            """Why a forward may run only once, or None."""

    # The start.

    def pools(
        self, result: Any, runner: Any, kv_cache_config: Any, is_profiling: bool = False
    ) -> None:
        """Describe the KV caches of a model when they have been created."""
        of_process()  # A worker may be a fork.
        if is_profiling:
            return
        self.runner = None
        self.drop()
        self.runner = runner
        weakref.finalize(runner, self.drop)
        with self.needing():
            context = runner.vllm_config.compilation_config.static_forward_context
            interleave = maybe(runner, "parallel_config.cp_kv_cache_interleave_size") or 1
            share = Share(*self.rank().get("dcp", (0, 1)), interleave)
            self.pool = described(runner.kv_cache_config, context, draft_layers(runner), share)
            self.connects(runner.vllm_config)

    def raised(self, original: Call, runner: Any) -> None:
        """Remember the first error of a runner, which may begin another step after it."""
        try:
            original()
        except Exception as error:
            self.error = self.error or error
            if self.scheduler is None:  # The loop is in another process.
                judge(self.error, self.journal, self.settings)
            raise

    def launched(self, original: Call) -> None:
        """Note how many data-parallel engines start. Those of a dense model do not know it."""
        number = original.arguments["vllm_config"].parallel_config.data_parallel_size
        os.environ[ENGINES] = str(number)

    def rank(self) -> dict[str, tuple[int, int]]:
        """Return which rank of how many this process is, per kind of rank with several.

        Data-parallel ranks of a dense model are engines of their own, so their number is 0.
        """
        groups = ((name, maybe(sys.modules.get(RANKS), group)) for name, group in AXES.items())
        found = {name: (one.rank_in_group, one.world_size) for name, one in groups if one}
        found = {name: one for name, one in found.items() if one[1] > 1}
        shared = maybe(sys.modules.get(RANKS), "_DCP")
        found = parted(found, (maybe(shared, "rank_in_group"), maybe(shared, "world_size")))
        index = maybe(self.runner, "vllm_config.parallel_config.data_parallel_index")
        if index is not None and int(os.environ.get(ENGINES, "1")) > 1:
            found.setdefault("dp", (index, 0))
        return found

    def start(self, runner: Any) -> Watcher | None:
        """Start the watcher at the first forward, if there is a pool."""
        if self.pool is None:
            return None
        config = runner.vllm_config
        unknown = [*unjudged(config, self.pool.draft is not None)]
        alone = self.scheduler is not None and not self.rank()
        unknown += unfollowed(config.kv_transfer_config, alone)
        if "pp" in self.rank() and config.speculative_config is not None:
            unknown.append("speculation with pipeline parallelism")
        if split := {"dcp", "cp"} & {*self.rank()}:
            others = {
                "decode context parallelism": len(split) > 1,
                "speculation": config.speculative_config,
                "a KV connector": config.kv_transfer_config,
                "pipeline parallelism": "pp" in self.rank(),
            }
            unknown += [f"{what} with context parallelism" for what in others if others[what]]
        if unknown:
            self.give_up(f"{', '.join(unknown)} is not watched")
            return None
        if self.account is not None:
            self.journal.count(drafts=0, accepted_drafts=0, rejected_drafts=0)
        self.journal.scope(
            **{name: maybe(config, f"{part}.{name}") for part in SCOPE for name in SCOPE[part]},
            runner=type(runner).__module__,
            windows=[one.window for one in self.pool.targets],
        )
        watcher = self.watch(self.pool.groups)
        effects = (effect for name, effect in EFFECTS.items() if maybe(config, name))
        together = any(size for _, size in self.rank().values())
        stores = maybe(config, "kv_transfer_config.kv_connector") == FILED
        self.once = next(effects, TOGETHER if together else STORES if stores else None)
        self.capturing = None
        self.states = None
        if self.pool.states and self.settings.every == 1:
            # States that a forward computes without being watched have other bits.
            loaded = config.kv_transfer_config is not None
            self.states = VllmStates(self.pool, loaded)
            if loaded:
                self.journal.scope(states_not_watched="which ones a KV connector may load")
        self.hook(type(runner.get_model()), "__call__", self.model)
        self.follow_attention(runner)
        if hasattr(model_of(runner), "compute_logits"):
            self.hook(type(model_of(runner)), "compute_logits", self.scores)
        if maybe(runner, "pcp_manager") is not None:
            self.hook(type(runner.pcp_manager), "restore_hidden_states", self.rejoins)
        return watcher

    # Forwards.

    def execute(
        self,
        original: Call,
        runner: Any,
        scheduler_output: Any,
        intermediate_tensors: Any = None,
        dummy_run: bool = False,
    ) -> None:
        """Watch one forward of a runner. Its facts are known once its metadata is built."""
        output = scheduler_output
        if self.now is not None or dummy_run:
            return
        if self.runner is not None and runner is not self.runner:
            self.journal.undecided("only the last engine of a process is watched")
            return
        message = maybe(output, MESSAGE)
        if message is None:
            self.unscheduled += 1
            if self.unscheduled > WARM_UP:
                self.journal.undecided("a scheduler that tells nothing is not watched")
            return
        self.forget_undrafted()
        try:
            self.follow_drafts(runner, output, self.requests.follow(output, message))
            self.follow_images(runner, output)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self.give_up(f"what the scheduler says is not recognised: {error!r}")
        if self.watcher is None and output.total_num_scheduled_tokens:
            with torch.inference_mode(False):  # Its tensors are also modified outside of forwards.
                self.watcher = self.start(runner)
        for method, *given in message["events"]:
            if self.watcher is not None:
                getattr(self, method)(*given)
        if self.watcher is None or not output.total_num_scheduled_tokens:
            return
        self.copies(self.watcher, output)
        self.forwards += 1
        if not self.watcher.due(*alike(output.num_scheduled_tokens.values())):
            self.recording.unseen(output.num_scheduled_tokens)
            self.skipped(self.watcher, output, original)
            return
        self.judge_recorded(self.requests.known)  # Of a scheduler in another process.
        self.skipping = False
        self.catch_up()
        now = VllmForward(runner, output)
        with self.forward_of(now), self.learning():
            output = original()
            self.exchanged("sent", output, now.live)
        self.checked = now.forward is not None

    def ended(self, now: Any) -> None:
        """Report the replays of parts of the model."""
        if self.watcher is None or not isinstance(now, VllmForward):
            return
        if now.forward is None:
            self.journal.undecided("a forward without attention metadata is not watched")
            for group in self.watcher.ledgers:
                self.watcher.forget(group, None)
            return
        if not self.watcher.watching:  # It ended before its KV was copied.
            return
        if self.states is not None:
            self.states.end()
        self.rows("attention", self.layers.taken())
        if now.batch is not None and now.pieces:
            live = now.batch.live[1]
            self.watcher.replay(
                Replay("pieces", "pieces", live, now.pieces, (), tuple, once=PIECES)
            )

    def missed(self) -> None:
        """Stop watching drafts and states after the connector failed."""
        self.states = None
        if self.account is not None:
            self.give_up("it is not known which drafts were accepted while the connector failed")

    def skipped(self, watcher: Watcher, output: Any, run: Callable[[], Any]) -> None:
        """Run a forward that is not checked, and report only the slots that it writes."""
        assert self.pool is not None
        pool, firsts = self.pool, self.first_unknown(list(output.num_scheduled_tokens))
        owned = {
            name: self.requests.since(
                firsts, pool, [of.number for of in pool.targets if name in of.names]
            )
            for name in pool.names
        }
        if pool.draft is not None:
            self.unwatched = self.requests.since(firsts, pool, [pool.draft.number])
        run()
        watcher.skipped(owned)

    def dummy(self, original: Call, worker: Any) -> None:
        """Watch a batch of a rank without requests, which may write reserved slots only."""
        watcher = self.watcher
        if watcher is None or maybe(worker, "model_runner") is not self.runner:
            return
        if watcher.due("dummy batch", 1):
            with self.forward_of(worker, Forward("dummy batch", (), {}), "resting"):
                original()
        else:
            original()
            watcher.skipped({})

    def sleeps(self, result: Any, worker: Any, given: Any = None) -> None:
        """Note that a worker gave up the memory of its KV: all, or that with the `given` tags."""
        kept = isinstance(given, tuple) and "kv_cache" not in given
        if self.watcher is not None and maybe(worker, "model_runner") is self.runner and not kept:
            self.watcher.dropped()

    def metadata(self, original: Call, owner: Any, *, logits_indices: Any = None) -> None:
        """Begin the forward when its attention metadata has been built."""
        result = original()
        self.learned()
        found = result[0] if isinstance(result, tuple) else result
        given = original.having("req_ids")
        now, pool = self.now, self.pool
        if pool is None:
            return
        with self.needing():
            if pool.of_draft(found):
                self.capturing = None
            elif now is None and self.watcher is None:
                runner = owner if given is None else None
                self.capturing = batches.of_runner(runner, found, pool, given, (0, 0))
            elif now is not None and now.forward is None:

                def go(now: VllmForward = now, pool: VllmPool = pool) -> None:
                    self.begin(now, pool, found, given)
                    self.indices(logits_indices)
                    if self.watcher is not None:
                        self.watcher.lines.start()  # The model's arguments are prepared next.
                    if given is not None:
                        parts = now.runner, owner, found, original, self.hidden
                        now.whole = in_place_of_a_graph(*parts)

                if maybe(now.output, "has_sync_kv_loads"):
                    now.go = go
                else:
                    go()

    def filled(self) -> None:
        """Begin the forward after the engine has loaded what it reads."""
        if self.now is not None and self.now.go is not None:
            go, self.now.go = self.now.go, None
            with self.needing():
                go()

    def begin(self, now: VllmForward, pool: VllmPool, metadata: Any, given: Any) -> None:
        """Report the facts of a forward to the watcher, and judge its inputs."""
        watcher = self.watcher
        assert watcher is not None
        whole = maybe(now.runner, "pcp_manager._global_batch")  # Ranks split it.
        names = list((whole or given or now.runner.input_batch).req_ids)
        account = self.account
        live = len(names), int(now.output.total_num_scheduled_tokens)
        batch = batches.of_runner(now.runner, metadata, pool, given, live)
        for one in map(self.requests.known.__getitem__, names):
            known = self.contents, self.first_contents
            one.adapter = one.adapter or content_of(now.runner, one, *known)
        given_ids = {} if account is None else batch.by_row(names, now.output.num_scheduled_tokens)
        forward = self.requests.forward(now.output, names, pool, account, given_ids)
        self.places = None
        if whole is not None:
            batch = split = batches.split(batch, whole, forward, *self.rank().get("cp", (0, 1)))
            self.places = split.places(forward)
        counts = batches.counts_of(now.runner, whole or given, live[0])
        slots = [
            [self.requests.of(name, pool).slots[of.number] for name in names] for of in pool.targets
        ]
        if whole is None:
            now.bases = batches.bases_of(batch, forward, counts, slots, pool.page)
        forward = replace(forward, bases=[base for base, _ in now.bases])
        now.forward, now.batch, self.undrafted = forward, batch, names
        watcher.begin(forward)
        if counts is not None:
            cached = [row.cached for row in forward.rows[: live[0]]]
            watcher.judge_inputs("runner", [expected("num_computed_tokens", counts, cached)])
        if account is not None:
            watcher.judge_inputs("batch", account.compared(self.requests.known, given_ids))
        parts = ["block_table", "seq_lens" if pool.share.ranks == 1 else batches.LENGTHS]
        if any(base.name.startswith(batches.LENGTHS) for base, _ in now.bases):
            parts.reverse()  # The first one is blamed.
        made_of = [getattr(one, part) for one in batch.metadata for part in parts]
        watcher.lines.note(LISTS, {"block_table": made_of})
        kinds = {one.names[0] for one in pool.targets}
        lists = (batch.lists(pool, name, forward) for name in kinds)
        watcher.judge_lists([one for some in lists for one in some])
        ids, positions = (one[: live[1]].repeat(len(pool.targets)) for one in batch.tokens())
        watcher.judge_tokens(ids, positions)
        inputs = batch.to_judge(forward, now.runner.vllm_config.model_config, now.bases)
        watcher.judge_inputs("batch", [*inputs, *batch.tails(forward)])
        drafts = now.runner.vllm_config.speculative_config is not None
        watcher.judge_inputs("indexer", list(batches.of_indexer(batch, metadata, forward, drafts)))
        if self.states is not None:
            of_rows = [self.requests.known[name] for name in names]
            rows = list(zip(of_rows, forward.rows, strict=False))
            watcher.judge_inputs("states", list(self.states.begin(rows, metadata)))
            self.journal.count(state_reads=sum(row.cached > 0 for _, row in rows))
        self.begin_rows(now, names)

    def follow_images(self, runner: Any, output: Any) -> None:
        """Note the images of requests that begin, and positions that have several dimensions."""
        several = maybe(runner, "model_config.uses_mrope")
        with torch.inference_mode():
            for new in output.scheduled_new_reqs:
                known = self.requests.known[new.req_id]
                given = maybe(new, "mm_features") or ()
                images = [one for one in given if one.modality != "prompt_embeds"]
                places = [(one.mm_position, one.identifier) for one in images]
                known.images = [(one.offset, one.length, name) for one, name in places]
                if several:
                    positions = model_of(runner).get_mrope_input_positions
                    held, delta = positions(new.prompt_token_ids, images)
                    known.places = held.cpu(), int(delta)

    def judge_positions(self, now: VllmForward) -> None:
        """Judge the positions that the model gets, if these have several dimensions."""
        runner, watcher = now.runner, self.watcher
        held = maybe(runner, "mrope_positions.gpu")
        held = maybe(runner, "model_state.rope_state.positions") if held is None else held
        if held is None or watcher is None or now.forward is None or now.batch is None:
            return
        rows = now.forward.rows[: now.batch.live[0]]
        known = {row.request: self.requests.known[row.request].places for row in rows}
        places = {name: one for name, one in known.items() if one is not None}
        if (right := in_dimensions(rows, places)) is not None:
            mine = held[:, : now.batch.live[1]]
            watcher.judge_inputs("model", [expected("mrope_positions", mine, right)])

    def judge_embeddings(self, now: VllmForward) -> None:
        """Judge the embeddings of images that the model gets, in the first stage."""
        runner = now.runner
        held = maybe(runner, "inputs_embeds.gpu")
        if held is None:
            held = maybe(runner, "model_state.encoder_runner.inputs_embeds")
        first = maybe(runner, "intermediate_tensors") is None
        if held is None or not first or now.forward is None or now.batch is None:
            return
        rows, made = now.forward.rows[: now.batch.live[0]], maybe(runner, "encoder_cache")
        made = made if isinstance(made, dict) else maybe(made, "encoder_outputs") or {}
        images = {
            row.request: [
                (first, count, made.get(name))
                for first, count, name in self.requests.known[row.request].images
            ]
            for row in rows
        }
        self.rows("model", embedded(held, rows, images))

    # Replays.

    def model(self, original: Call, owner: Any, **kwargs: Any) -> None:
        """Judge the reads of a forward that replays no graph of the whole model."""
        now, watcher, context = self.now, self.watcher, context_of()
        self.learned()
        if watcher is None or now is None or now.batch is None or now.called:
            return
        if watcher.between_stages and not now.received:
            self.received(now, original)
        runner, live = now.runner, now.batch.live[1]
        known = runner, runner.get_model(), maybe(runner, "cudagraph_manager")
        replays = getattr(maybe(context, "cudagraph_runtime_mode"), "name", "FULL")
        if replays == "FULL" or owner not in known:  # A graph of the whole model replays.
            return
        now.called = True
        positions = kwargs.get("positions")
        if isinstance(positions, Tensor) and positions.ndim == 1:
            right = now.batch.expected_positions(now.forward)
            given = [expected("positions", positions, right, size=len(positions))]
            watcher.judge_inputs("model", implied_by(given, now.bases))
        self.judge_positions(now)
        self.judge_embeddings(now)
        threads = "it runs on two threads" if maybe(context, "ubatch_slices") else None
        before = [(context, *one) for one in vars(context).items()]
        self.run_without_graph(
            original,
            lambda found: {name: tensor[:live] for name, tensor in tensors(found)},
            lambda: True,
            lambda: attributes((self, "now", None), *before),
            graph=runner,
            kind=f"{now.forward.kind} forward",
            rows=live,
            bucket=live,
            inputs=[whole(name, one) for name, one in tensors(kwargs) if one.ndim],
            once=self.once or threads,
        )
        self.computed(original.result(), live)
        now.ran = True

    def computed(self, output: Any, live: int) -> None:
        """Note the hidden states of the live tokens of a forward, if they are those of all."""
        if self.places is None:
            super().computed(output, live)

    def rejoins(self, result: Tensor, _: Any, part: Tensor) -> None:
        """Judge whether what this rank computed comes back in its places among all tokens."""
        if self.places is None or self.sampling is None or not self.checked:
            return
        (mine, whose), self.places = self.places, None
        self.computed(result, len(result))
        known = self.sampling.hidden
        if known is not None and len(whose) <= len(known):
            names, held = [whose[at][0] for at in mine], row_sums(part[: len(mine)])
            texts = [f"position {at} of request {name}" for name, at in whose]
            self.rows("ranks", handed_on(HIDDEN, names, held, mine, known[: len(whose)], texts))

    def received(self, now: VllmForward, call: Call) -> None:
        """Report the hidden states that the model gets from the stage before."""
        given = call.arguments
        for name in ("model_inputs", "kwargs"):
            given = {**given, **(given.get(name) or {})}
        if (states := given.get("intermediate_tensors")) is not None:
            now.received = True
            self.exchanged("received", states, now.live)

    def captured(self, result: Any, graph: Any) -> None:
        """Record the static inputs of a captured graph."""
        if self.capturing is not None and self.watcher is None:
            self.captures.note(graph, type(graph).__name__, self.capturing.inputs())

    def wrapper(self, original: Call, wrapper: Any) -> None:
        """Remember the wrapper of a graph, which can run without it and has its outputs."""
        now = self.now
        if now is None:
            return
        if not now.received:  # The newer runner passes nothing to a graph of the whole model.
            self.exchanged("received", maybe(now.runner, "intermediate_tensors"), now.live)
        before, now.wrapped = now.wrapped, original
        try:
            original()
        finally:
            now.wrapped = before
        now.ran = True

    def replay(self, original: Call, graph: Any) -> None:
        """Judge the replay of a graph."""
        now, watcher = self.now, self.watcher
        self.learned()
        if now is None or watcher is None or now.batch is None:
            return
        wrapper = None if now.wrapped is None else now.wrapped.args[0]
        mode = getattr(maybe(wrapper, "runtime_mode"), "name", "FULL")
        if wrapper is None or mode != "FULL":  # Its graphs hold parts of the model.
            batch = maybe(context_of(), "batch_descriptor")
            now.pieces = now.pieces or maybe(batch, "num_tokens") or now.batch.padded[1]
            return
        live, padded = now.batch.live[1], now.batch.padded[1]
        self.judge_positions(now)
        self.judge_embeddings(now)

        def outputs() -> dict[str, Tensor]:
            output = output_of(wrapper, graph)
            return {} if output is None else {"output": output[:live]}

        def padding() -> list[Tensor]:
            output = output_of(wrapper, graph)
            return [] if output is None else [output[live:padded]]

        def eagerly() -> dict[str, Tensor]:
            _, *given = now.wrapped.args
            with attributes((self, "eager", now)):
                run = now.whole or partial(wrapper.runnable, *given, **now.wrapped.kwargs)
                output = run()
            return {"output": output[:live]}

        watcher.replay(
            Replay(
                graph,
                type(wrapper).__name__,
                live,
                padded,
                now.batch.to_judge(now.forward, now.runner.vllm_config.model_config, now.bases),
                original,
                outputs,
                eagerly if now.whole or hasattr(wrapper, "runnable") else None,
                padding,
                self.once,
            )
        )
        self.computed(output_of(wrapper, graph), live)


def output_of(wrapper: Any, graph: Any) -> Tensor | None:
    """Return the output of a graph, with its padding."""
    output = maybe(wrapper, "hidden_states")
    for entry in getattr(wrapper, "concrete_cudagraph_entries", {}).values():
        if entry.cudagraph is graph:
            output = entry.output
    return output if isinstance(output, Tensor) else None


def in_place_of_a_graph(
    runner: Any,
    state: Any,
    metadata: Any,
    prepare: Call,
    hidden: Callable[[], AbstractContextManager[None]],
) -> Callable[[], Any] | None:
    """Return a function that runs the newer runner's model with the inputs of its whole graph."""
    batch: Any
    batch, mappings, config = map(prepare.arguments.get, PREPARED)
    if runner.uses_inputs_embeds or mappings is None or runner.ubatch_runner is not None:
        return None

    def run() -> Any:
        module: Any = sys.modules["vllm.forward_context"]
        layers: Any = sys.modules["vllm.v1.worker.gpu.attn_utils"]
        entered = module.set_forward_context(
            metadata,
            runner.vllm_config,
            num_tokens=batch.num_tokens_after_padding,
            slot_mapping=layers.build_slot_mappings_by_layer(mappings, config),
            is_padding=batch.is_padding,
        )
        inputs = {
            "input_ids": batch.input_ids,
            "positions": batch.positions,
            "inputs_embeds": None,
            "intermediate_tensors": None,
            **state.prepare_inputs(batch, runner.req_states),
        }
        with hidden(), entered:
            output = runner.get_model()(**inputs)
        return output[0] if isinstance(output, tuple) else output

    return run


def context_of() -> Any:
    """Return what the model's layers get for the current forward, or None."""
    module = sys.modules.get("vllm.forward_context")
    if module is None or not module.is_forward_context_available():
        return None
    return module.get_forward_context()
