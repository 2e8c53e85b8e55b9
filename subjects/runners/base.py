"""The base class of graph runners: buckets, static inputs, capture and replay.

A subclass defines the contract, the metadata and the captured function of a runner. The design
follows the graph runners of sglang.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Kind, Role
from paritybit.reference.model import Model, Output
from paritybit.reference.ops import Ops
from paritybit.reference.state_pool import StatePool
from paritybit.subjects.access import ListedKV
from paritybit.subjects.buffers import BufferPool, Conversions, StaticInputs
from paritybit.subjects.contracts import HIDDEN, TOPK, Axis, Contract, Extents
from paritybit.subjects.graphs.capture import Capture
from paritybit.subjects.graphs.protocol import Graph
from paritybit.subjects.key_lists import Lists, StaticLists
from paritybit.subjects.parts import Parts
from paritybit.subjects.pool import LocState, SubjectPool
from paritybit.subjects.protocol import KeyLists, Overrides, Replay
from paritybit.subjects.toggles import LocationScheme, Toggles
from torch import Tensor

WARM_UP_RUNS = 1
"""The number of runs before a capture. sglang makes two; here one has the same effect."""


NOTHING_OVERRIDDEN = Overrides()


@dataclass(frozen=True)
class RunnerSpec:
    """The arguments of a runner. `buckets` are the captured sizes in its unit."""

    ops: Ops
    models: Mapping[Role, Model]
    pools: Mapping[Role, SubjectPool]
    states: StatePool
    contract: Contract
    toggles: Toggles
    buckets: tuple[int, ...]
    buffers: BufferPool
    memory_pool: Any | None
    parts: Parts


class GraphRunner(ABC):
    """Runs the batches of one mode by replaying the graph of the smallest bucket that fits.

    The constructor allocates the static buffers. `capture_all` captures the graphs. Class variables
    describe a runner:

    | variable | meaning |
    |---|---|
    | `kv_role` | the model whose KV it reads and stores |
    | `rows` | the rows of its contract for all location schemes |
    | `token_buckets` | buckets are in tokens rather than in requests |
    | `shares_buffers` | shares static buffers of the same name with other runners of the engine |
    | `store_count` | the number of forwards inside one graph that store KV |
    | `captures` | whether it captures graphs |
    | `ragged` | the attention kernel that it uses: see `SubjectPool` |
    | `attention_captured` | whether attention is in the graphs rather than between them |
    """

    name: ClassVar[str]
    mode: ClassVar[Mode]
    kv_role: ClassVar[Role] = Role.TARGET
    rows: ClassVar[Contract]
    token_buckets: ClassVar[bool] = False
    shares_buffers: ClassVar[bool] = True
    store_count: ClassVar[int] = 1
    captures: ClassVar[bool] = True
    ragged: ClassVar[bool] = False
    attention_captured: ClassVar[bool] = True

    def __init__(self, spec: RunnerSpec) -> None:
        self.ops = spec.ops
        self.target = spec.models[Role.TARGET]
        self.draft = spec.models[Role.DRAFT]
        self.pool = spec.pools[self.kv_role]
        self.states = spec.states
        self.toggles = spec.toggles
        self.buckets = tuple(sorted(spec.buckets))
        self.memory_pool = spec.memory_pool
        config = self.target.config
        self.listed_kv = spec.parts.of(ListedKV)
        self.inputs = StaticInputs(
            spec.contract,
            self.extents(self.buckets[-1]),
            spec.buffers,
            self.target.dtype,
            {HIDDEN: config.hidden, TOPK: self.topk},
        )
        self.metadata = spec.parts.of(StaticLists)(
            self.metadata_sizes(self.buckets[-1]), spec.buffers
        )
        self.captured: dict[int, Capture[Any]] = {}
        self.captured_states: list[LocState] = []
        self.mixed: list[Tensor] = []
        self._state: Any = None

    @abstractmethod
    def extents(self, bucket: int) -> Extents:
        """Return the length of each axis of the static inputs for a bucket."""

    @abstractmethod
    def metadata_sizes(self, bucket: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return elements and dtype of each static metadata buffer for a bucket, by name."""

    @abstractmethod
    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        """Return the values that a batch copies to the static inputs, by name."""

    @abstractmethod
    def plan(self, bucket: int) -> None:
        """Write the metadata for all rows of a bucket, including padded ones."""

    @abstractmethod
    def keys(self, bucket: int) -> KeyLists | None:
        """Return the key lists of a bucket's rows, or None if no row reads KV."""

    @abstractmethod
    def forward(self, bucket: int) -> Output:
        """Run the function that is captured, over the static buffers of a bucket."""

    def size(self, batch: ForwardBatch) -> int:
        """Return a batch's live size in the unit of the buckets."""
        return batch.live_tokens if self.token_buckets else batch.live_requests

    def padded(self, batch: ForwardBatch | None, bucket: int) -> bool:
        """Return whether a replay of a batch has padding."""
        return batch is None or self.size(batch) != bucket

    def live_rows(self, live_size: int) -> int:
        """Return the number of live rows in the output."""
        return live_size

    def bucket(self, live_size: int) -> int | None:
        """Return the smallest bucket that holds `live_size`, or None."""
        return next((bucket for bucket in self.buckets if bucket >= live_size), None)

    def can_run(self, batch: ForwardBatch) -> bool:
        """Whether a captured graph can run this batch."""
        return batch.mode is self.mode and self.bucket(self.size(batch)) is not None

    def replay(
        self, batch: ForwardBatch | None, overrides: Overrides = NOTHING_OVERRIDDEN
    ) -> Replay:
        """Populate the static inputs, write the metadata, and replay the graph.

        A batch of None is an idle step, in which all rows are padding. The bucket is the smallest
        that holds the batch, or the largest with `overrides.largest`. Raises ValueError if no
        bucket holds the batch.
        """
        live_size = 0 if batch is None else self.size(batch)
        smallest = self.bucket(live_size)
        if smallest is None:
            raise ValueError(f"no captured size fits {live_size} rows; captured: {self.buckets}")
        bucket = self.buckets[-1] if overrides.largest else smallest
        padded = self.padded(batch, bucket)
        self.populate(batch, bucket, padded=padded)
        overwrite(self.inputs.buffers, overrides)
        self.choose_kernel()
        self.plan(bucket)
        overwrite(self.metadata.buffers, overrides)
        output = self.launch(batch, bucket, captured=overrides.captured)
        live_rows = self.live_rows(live_size)
        return Replay(
            runner=self.name,
            bucket=bucket,
            live_size=live_size,
            padded=padded,
            output=output,
            live_rows=live_rows,
            live_output={name: values[:live_rows] for name, values in output.items()},
            defined=output,
            keys=self.keys(bucket),
        )

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Copy a batch to the static inputs, and fill the padding."""
        self.inputs.populate(self.live_values(batch, bucket), padded=padded)

    def launch(self, batch: ForwardBatch | None, bucket: int, *, captured: bool = True) -> Output:
        """Replay the bucket's graph, and return its static output.

        Without `captured`, run the captured function eagerly over the same static buffers.
        """
        if not captured:
            self.preset_location(bucket)
            return self.run_once(bucket)
        graph = self.captured[bucket]
        graph.replay()
        output: Output = graph.output
        return output

    def new_capture(self) -> Capture[Any]:
        """Return a new, empty capture in this runner's memory pool."""
        capture: Capture[Any] = Capture(self.ops, self.memory_pool)
        capture.static = {**self.inputs.buffers, **self.metadata.buffers}
        return capture

    @property
    def state(self) -> Any:
        """The Python state that replays change, without static buffers. None by default."""
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state = state

    @property
    def graphs_held(self) -> tuple[dict[int, Capture[Any]], list[LocState], list[Tensor]]:
        """The captures by bucket, and what they need alive: pool states and attention outputs."""
        return self.captured, self.captured_states, self.mixed

    @graphs_held.setter
    def graphs_held(
        self, held: tuple[dict[int, Capture[Any]], list[LocState], list[Tensor]]
    ) -> None:
        self.captured, self.captured_states, self.mixed = held

    @property
    def topk(self) -> int:
        """How many branches a draft keeps."""
        return self.target.config.speculation.topk

    @property
    def window(self) -> int:
        """The number of keys that a token sees on SWA layers, including itself."""
        return self.target.config.window

    def list_rows(self, bucket: int, lists: Callable[..., Lists]) -> None:
        """Write the key lists of a bucket's rows. `lists` has the parameters of `row_lists`."""
        self.metadata.write(
            lists(
                self.view("req_pool_indices", bucket),
                self.view("seq_lens", bucket),
                self.view("seq_lens_cpu", bucket),
                self.window,
                self.pool,
                self.toggles.memo_resets,
            )
        )

    def view(self, name: str, bucket: int) -> Tensor:
        """Return the part of a static input that a bucket reads."""
        return self.inputs.view(name, self.extents(bucket))

    def static_buffers(self) -> Mapping[str, Tensor]:
        """Return all static buffers, inputs and metadata, by name."""
        return {**self.inputs.buffers, **self.metadata.buffers}

    @property
    def conversions(self) -> Conversions:
        """The dtype conversions on copy that have happened: (name, from, to)."""
        return self.inputs.conversions | self.metadata.conversions

    def forget_conversions(self) -> None:
        """Forget the conversions that have happened."""
        self.inputs.conversions.clear()
        self.metadata.conversions.clear()

    def graphs(self, bucket: int) -> list[Graph]:
        """Return the captured segments of a bucket."""
        return self.captured[bucket].segments

    def operations(self, bucket: int) -> list[str]:
        """Return the names of the ops in a bucket's graph."""
        return [name for graph in self.graphs(bucket) for name in graph.operations]

    def translations(self, scheme: LocationScheme) -> int:
        """Return the number of full-to-SWA translations in a graph for a location scheme."""
        layers = len(self.pool.pool.config.layers_of(Kind.SWA))
        per_store = {
            LocationScheme.PER_LAYER: layers,
            LocationScheme.PRESET: 0 if "out_cache_loc_swa" in self.inputs.buffers else layers,
            LocationScheme.MEMO: 1,
        }
        return self.store_count * per_store[scheme]

    def batch_inputs(self, batch: ForwardBatch) -> dict[str, Tensor]:
        """Return the batch's tensors for the static inputs, with translated SWA locations."""
        found = {name: batch.value(name) for name in self.inputs.buffers}
        if "out_cache_loc_swa" in self.inputs.buffers:
            found["out_cache_loc_swa"] = self.pool.translate_loc_from_full_to_swa(
                batch.out_cache_loc
            )
        return {name: values for name, values in found.items() if values is not None}

    def scalar(self, value: int) -> Tensor:
        """Return a number as a tensor for the model, int32 [1]."""
        return torch.full((1,), value, dtype=torch.int32, device=self.target.device)

    def plan_all(self) -> None:
        """Write the metadata of all buckets, as `capture_all` does, without captures."""
        for bucket in self.capture_order():
            self.plan(bucket)

    def capture_all(self) -> None:
        """Capture all buckets in one memory pool."""
        for bucket in self.capture_order():
            self.plan(bucket)
            self.preset_location(bucket)
            run_once = partial(self.run_once, bucket)
            for _ in range(WARM_UP_RUNS):
                run_once()
            capture = self.new_capture()
            self.captured[bucket] = capture.run(run_once)
            # The graph may read a translation that was memoised before the capture. It is kept
            # alive, so that the graph reads a stale translation and not freed memory.
            self.captured_states.append(self.pool.state)

    def capture_order(self) -> tuple[int, ...]:
        """Return the buckets in capture order. The largest comes first: its memory fits all."""
        return self.buckets[::-1]

    def choose_kernel(self) -> None:
        """Select the attention kernel of this runner."""
        self.pool.choose_kernel(ragged=self.ragged)

    def run_once(self, bucket: int) -> Output:
        """Run the captured function of a bucket, as warm-up and capture do."""
        self.choose_kernel()
        if self.toggles.memo_resets.run_once:
            self.pool.invalidate_loc_cache()
        return self.forward(bucket)

    def preset_location(self, bucket: int) -> None:
        """Set the pool's `swa_loc` for a capture: the runner's static buffer, or None."""
        has_one = "out_cache_loc_swa" in self.inputs.buffers and self.toggles.preset_at_capture
        self.pool.set_swa_loc(self.view("out_cache_loc_swa", bucket) if has_one else None)


def overwrite(buffers: Mapping[str, Tensor], overrides: Overrides) -> None:
    """Write the overridden elements of these buffers."""
    for name, element, value in overrides.elements:
        if name in buffers:
            buffers[name].view(-1)[element] = value


def request_extents(requests: int, tokens_per_request: int = 1) -> dict[Axis, int]:
    """Return the extents of a bucket of requests with `tokens_per_request` tokens each."""
    return {Axis.REQUEST: requests, Axis.TOKEN: requests * tokens_per_request}
