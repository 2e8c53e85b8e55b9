"""Follows the model agent of the PyTorch engine, and the scheduler in the same process.

The scheduler runs ahead: while a forward runs, it sends the next one, and may free blocks of rows
that are already sent. Everything is therefore reported in the order in which it was sent.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from paritybit.connectors.failures import judge
from paritybit.connectors.following import Following, expected, offsets, padding, pages, table_of
from paritybit.connectors.hooking import Call, NotRecognisedError, maybe
from paritybit.connectors.sampling import rows_of
from paritybit.watch.facts import Forward, Group, Layer, Replay, Row, RowValues, StaticInput
from paritybit.watch.weak import ByObject, Weakly

KV, GRAPH, STATES = "kv", "full graph", "hidden_states"

INPUTS = "input_ids", "position_ids", "block_offsets"
LENGTHS = "q_start_loc", "q_seqlens", "kv_seqlens", "cu_seqlens_q", "cu_seqlens_k"

SCOPE = "block_size", "enable_prefix_caching", "window_size", "quant_policy"
SAMPLED = {"temperature": 1.0, "repetition_penalty": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": None}
"""Parameters of sampling, with the value of all rows if there is no tensor. None: the largest."""

UNFOLLOWED = ("backend_config.piecewise_cudagraph_max_tokens", "kv_connector", "memdecode_agent",
              "cache_config.states_shapes")  # fmt: skip
"""Settings with which forwards, states or copies of KV are not followed."""


@dataclass
class Sent:
    """A row that the scheduler has sent. Only its last `length` positions have slots."""

    sequence: Any
    name: str
    cached: int
    computed: int
    length: int
    slots: Tensor

    @property
    def row(self) -> Row:
        """The facts, with the tokens that are known by now."""
        known = min(self.cached + self.computed, int(self.sequence.num_valid_ids))
        tokens = self.sequence.history_cache[:known].tolist()
        space = self.sequence.adapter_name or ""
        return Row(self.name, tokens, self.cached, self.computed, {KV: self.slots}, space)


class Lmdeploy(Following):
    """The engine of this process, whose `agent` runs the model. `now` has the rows of a forward."""

    package = "lmdeploy"
    inner = ("/paging/block_manager/", "/paging/block_trie/kv_lifecycle")
    agent: Any = Weakly()

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.agent, self.kind, self.page, self.kernel_page, self.slots = None, "", 1, 1, 1
        self.sent = deque[list[Sent] | Callable[[], None]]()
        """The forwards that are sent, and what the scheduler did in between."""
        self.sizes = ByObject[int]()
        """How many positions of a sequence are computed once what is sent has run."""
        self.last: list[Sent] = []
        self.bound_to: tuple[Any, Mapping[str, Any], list[StaticInput]] | None = None

    def made(self, result: None, agent: Any) -> None:
        """Start to watch a cache."""
        self.agent, self.watcher, config = agent, None, agent.cache_config
        self.sent.clear()
        with self.needing():
            if agent.model_config.model_paradigm != "ar" or agent.dist_config.world_size > 1:
                raise NotRecognisedError("speculation, diffusion or more than one rank")
            for path in UNFOLLOWED:
                if maybe(agent, path):
                    raise NotRecognisedError(path)
            self.watcher = self.watch([self.group_of(agent.cache_engine)])
        others = sorted({*agent.cache_engine.block_caches} - {"k_cache", "v_cache"})
        settings = {name: getattr(config, name) for name in SCOPE}
        self.journal.scope(**settings, eager=agent.backend_config.eager_mode, not_watched=others)

    def group_of(self, cache: Any) -> Group:
        """Return the KV of all layers. Its first blocks belong to padding."""
        config = cache.cache_config
        self.page, self.kernel_page = config.block_size, config.kernel_block_size
        self.slots, block = config.num_gpu_blocks * self.page, self.kernel_page
        held = (tuple(one for one in layer if one.numel()) for layer in cache.gpu_cache)
        layers = tuple(Layer(f"layer {at}", tensors) for at, tensors in enumerate(held))
        shapes = {one.shape[:2] for layer in layers for one in layer.tensors}
        if shapes != {(self.slots // block, block)}:
            raise NotRecognisedError("the layout of KV")
        reserved = frozenset(range(config.num_reserved_gpu_blocks * self.page))
        # The kernels read one key more than the window has.
        window = config.window_size + 1 if config.window_size > 0 else None
        return Group(KV, layers, window, reserved, self.page, block)

    def catch_up(self) -> None:
        """Report what the scheduler did before the next forward."""
        while self.sent and not isinstance(self.sent[0], list):
            self.sent.popleft()()  # type: ignore[operator]

    def report(self, change: str, blocks: Any) -> None:
        """Report blocks after the forwards that are sent. Those on the host have larger numbers."""
        if (watcher := self.watcher) is not None:
            slots = torch.as_tensor(blocks * self.page)
            slots = slots[slots < self.slots]
            method, lines = getattr(watcher, change), watcher.here()
            self.sent.append(lambda: method(KV, slots, lines))
            self.catch_up()

    def allocate(self, result: Any) -> None:
        """Report allocated blocks."""
        self.report("allocated", result)

    def free(self, allocator: Any, blocks: Any) -> None:
        """Report freed blocks."""
        self.report("freed", blocks)

    def fill(self) -> None:
        """Report that slots were filled in a way that is not followed."""
        if self.watcher is not None:
            self.watcher.forget(KV, None)

    def idle(self, result: None, event: Any) -> None:
        """Judge which blocks are free or cached once no session has any."""
        scheduler = event.scheduler
        self.catch_up()
        if self.watcher is None or self.sent or scheduler.sessions or scheduler.has_unfinished():
            return
        if self.idle_since(self.forwards):
            with self.recognising("idleness"):
                allocator = scheduler.block_manager.allocator
                pool, nodes = allocator._gpu_allocator, [*scheduler.block_trie._roots.values()]
                for node in nodes:
                    nodes += node.children.values()
                held = torch.tensor([int(one.block_id) for one in nodes if one.block_id >= 0])
                cached = allocator.get_physical_blocks(held.long().numpy())
                free = pool._free_blocks[pool._num_blocks - pool._free_count :]
                self.watcher.idle({KV: (pages(free, self.page), pages(cached, self.page))})

    def missed(self) -> None:
        """Forget what is sent, so that the next forward leaves no verdict."""
        self.sent.clear()
        self.sent.append([])  # A forward may be sent before the next one runs.

    def send(self, original: Call, maker: Any) -> None:
        """Note a forward that the scheduler sends."""
        with self.learning():
            sent = original()
        if self.watcher is None or sent is None or sent["inputs"] is sent["delta"]:
            return
        inputs, rows, running = sent["inputs"], list[Sent](), sent["running"]
        for at, table in enumerate(maker.scheduler.get_block_tables(running)):
            sequence, dropped = running[at], int(running[at].num_ignored_history)
            if inputs is None:
                cached, computed = self.sizes.get(sequence) or 0, int(sent["delta"].max_q_seqlen)
            else:
                cached, computed = int(inputs.history_lengths[at]), int(inputs.seq_length[at])
            self.sizes[sequence] = size = cached + computed
            slots = pad(pages(table, self.page)[: size - dropped], (dropped, 0), value=-1)
            slots = pad(slots, (0, size - len(slots)), value=-1)
            name = str(sequence.seq_id)
            rows.append(Sent(sequence, name, cached, computed, size - dropped, slots))
        self.sent.append(rows)

    def taken(self, inputs: Any) -> list[Sent]:
        """Return the rows of the forward that runs now."""
        self.catch_up()
        rows = self.sent.popleft() if self.sent else None
        if not isinstance(rows, list):
            raise NotRecognisedError("a forward of a scheduler in another process")
        size, longest = len(inputs.seq_length), inputs.max_q_seqlen
        if size != len(rows) or longest != max(row.computed for row in rows):
            raise NotRecognisedError("a forward in another order")
        known = (row.sequence for row in rows)
        if any(len(one.history_embeddings) or not one.history_multimodals.empty() for one in known):
            raise NotRecognisedError("a request with more than text")
        return rows

    def forward(self, original: Call, agent: Any, inputs: Any) -> None:
        """Watch a forward. It begins when its lists are known."""
        watcher, self.last, self.bound_to = self.watcher, [], None
        if watcher is None or inputs.is_dummy or agent is not self.agent:
            return
        self.forwards += 1
        self.kind = "decode" if inputs.is_decoding else "prefill"
        with self.needing():
            self.last = self.taken(inputs)
        if not self.last:
            self.watcher = None
        elif watcher.due(self.kind, len(self.last)):
            with self.learning(), self.forward_of(self.last):
                original()
        else:
            original()
            watcher.skipped({KV: torch.cat([row.slots[row.cached :] for row in self.last])})
            self.last = []  # What it samples is not judged, which would wait for the GPU.

    def begin(self, held: Mapping[str, Any]) -> list[StaticInput]:
        """Begin the forward, and judge its lists. Returns its inputs."""
        watcher, now, page = self.watcher, self.now, self.kernel_page
        assert watcher is not None
        self.learned()
        watcher.begin(Forward(self.kind, tuple(row.row for row in now)))
        ids, positions, table = (held[name] for name in INPUTS)
        counts = -(-held["kv_seqlens"] // page)
        watcher.judge_lists([table_of(INPUTS[2], KV, table, counts, page, None)])
        live, rows = sum(row.computed for row in now), len(now)
        watcher.judge_tokens(ids[0, :live], positions[0, :live])
        size, most = (live, ids.shape[1], 1), self.agent.model_config.vocab_size
        return [
            StaticInput(INPUTS[0], ids, *size, (0, most)),
            StaticInput(INPUTS[1], positions, *size, (0, self.slots)),
            StaticInput(INPUTS[2], table, rows, len(table)),
            *padding(INPUTS[2], table[rows:, 0], 0, table),
            *lengths_of(now, held),
        ]

    def eager(self, original: Call, runner: Any, **kwargs: Any) -> Any:
        """Watch a forward without a graph."""
        if (now := self.now) is None or self.watcher is None:
            return None
        inputs = self.begin({**vars(kwargs["attn_metadata"]), **kwargs})
        self.watcher.judge_inputs("batch", inputs)

        facts = {"graph": runner, "rows": len(now), "bucket": len(now), "inputs": inputs}
        outputs, alone = lambda result: {STATES: result[STATES]}, lambda: True
        return self.run_without_graph(original, outputs, alone, kind="eager", **facts)

    def bound(self, result: Any, runner: Any) -> None:
        """Note which graph is next, and begin the forward, as its inputs are filled."""
        if self.now is not None:
            self.bound_to = runner, result, self.begin(runner.meta.input_buffers)

    def capture(self, result: Any, runner: Any) -> None:
        """Record the inputs of a graph that was captured."""
        held = runner.meta.input_buffers.items()
        self.captures.note(
            runner._graph, GRAPH, [StaticInput(name, one, 0, 0) for name, one in held]
        )

    def replay(self, original: Call, graph: Any) -> Any:
        """Watch the replay of a graph."""
        if (now := self.now) is None or self.bound_to is None or self.watcher is None:
            return None
        runner, kwargs, inputs = self.bound_to
        meta, live = runner.meta, sum(row.computed for row in now)

        def outputs(buffers: Any = None) -> dict[str, Tensor]:
            return {STATES: (buffers or meta.output_buffers)[STATES][:, :live]}

        def without_graph() -> Mapping[str, Tensor]:
            return outputs(runner.model.make_output_buffers(runner._model_forward(**kwargs)))

        size, rest = (len(now), meta.max_batchs), lambda: (meta.output_buffers[STATES][:, live:],)
        runs = original, outputs, without_graph
        return self.watcher.replay(Replay(graph, GRAPH, *size, inputs, *runs, rest))

    def sample(
        self, agent: Any, logits: Any, inputs: Any, extra: Any, sampling_inputs: Any
    ) -> None:
        """Judge the parameters of sampling of each row."""
        if self.last:
            self.rows("the sampler", sampled(self.last, sampling_inputs))

    async def loop_of(self, original: Call) -> Any:
        """Judge an error that ends a loop of the engine."""
        try:
            return await original()
        except Exception as error:
            judge(error, self.journal, self.settings)
            raise


def lengths_of(now: list[Sent], held: Mapping[str, Any]) -> Iterator[StaticInput]:
    """Yield the lengths of rows, from which kernels compute slots. A padded row has one token."""
    size, rows = len(held["q_seqlens"]), len(now)
    computed, lengths = [row.computed for row in now], [row.length for row in now]
    right = (offsets(computed)[:-1], 0), (computed, 1), (lengths, 1)
    for name, (values, empty) in zip(LENGTHS, right, strict=False):
        yield expected(name, held[name], values, size=size)
        yield from padding(name, held[name][rows:], empty, held[name])
    for name, counts in zip(LENGTHS[3:], (computed, lengths), strict=True):
        yield expected(name, held[name], offsets([*counts, *[1] * (size - rows)]))


def sampled(rows: list[Sent], given: Any) -> Iterator[RowValues]:
    """Yield what the sampler uses for each row. One that is greedy uses the first two only."""
    asked, names = [row.sequence.sampling_param for row in rows], [row.name for row in rows]
    for name in [*SAMPLED][: 2 if given.max_top_k == 1 else None]:
        filled, same = getattr(given, name), SAMPLED[name]
        held = [given.max_top_k if same is None else same] * len(rows) if filled is None else filled
        right = [max(0, one.top_k) if name == "top_k" else getattr(one, name) for one in asked]
        yield rows_of(name, names, held, right, filled=filled)
