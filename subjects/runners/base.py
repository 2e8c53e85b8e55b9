"""The base class of graph runners: how a runner captures graphs, and how it replays a batch.

`capture_all` records the forward pass of each bucket over static buffers. `replay` runs a batch:

1. It chooses the smallest bucket that holds the batch.
2. `populate` copies the batch to the static inputs, and resets the padding as the contract says.
3. `write_metadata` lists the slots that each token of the bucket reads.
4. `launch` replays the bucket's graph, which reads both.

A subclass has the contract of a runner, the captured function `forward`, and `queries`, which says
what its tokens attend to. The design follows the graph runners of sglang.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import DRAFT_STEPS, Kind, Role
from paritybit.reference.model import Decoder, Output
from paritybit.reference.ops import Ops
from paritybit.subjects.buffers import BufferPool, StaticInputs
from paritybit.subjects.contracts import Axis, Contract, Extents
from paritybit.subjects.graphs.capture import Capture
from paritybit.subjects.key_lists import (
    Lists,
    Queries,
    StaticLists,
    keys_of,
    list_keys,
    list_sizes,
    translated,
)
from paritybit.subjects.pool import SubjectPool
from paritybit.subjects.protocol import KeyLists, Overrides, ReplayResult
from paritybit.subjects.toggles import LocationScheme, Site, Toggles
from torch import Tensor

NOTHING_OVERRIDDEN = Overrides()


class GraphRunner(ABC):
    """Runs the batches of one mode by replaying the graph of the smallest bucket that fits.

    The constructor allocates the static buffers. `buckets` are the captured sizes in the runner's
    unit. `capture_all` captures the graphs. Class variables describe a runner:

    | variable | meaning |
    |---|---|
    | `kv_role` | the model whose KV it reads and stores |
    | `rows` | its contract for all location schemes: an entry per static input |
    | `token_buckets` | buckets are in tokens rather than in requests |
    | `tokens_per_request` | how many tokens a bucket has per request |
    | `lists_per_request` | the tokens of a request read parts of one key list |
    | `static_metadata` | key lists are in static buffers; otherwise each forward makes fresh ones |
    | `shares_buffers` | shares static buffers of the same name with other runners of the engine |
    | `store_count` | the number of forwards inside one graph that store KV |
    | `captures` | whether it captures graphs |
    | `attention_captured` | whether attention is in the graphs rather than between them |
    """

    name: ClassVar[str]
    mode: ClassVar[Mode]
    kv_role: ClassVar[Role] = Role.TARGET
    rows: ClassVar[Contract]
    token_buckets: ClassVar[bool] = False
    tokens_per_request: ClassVar[int] = 1
    lists_per_request: ClassVar[bool] = False
    static_metadata: ClassVar[bool] = True
    shares_buffers: ClassVar[bool] = True
    store_count: ClassVar[int] = 1
    captures: ClassVar[bool] = True
    attention_captured: ClassVar[bool] = True
    state: Any = None
    """Python state that replays change and `reset` restores. A correct runner has none."""

    def __init__(
        self,
        ops: Ops,
        models: Mapping[Role, Decoder],
        pools: Mapping[Role, SubjectPool],
        states: Tensor,
        contract: Contract,
        toggles: Toggles,
        buckets: tuple[int, ...],
        buffers: BufferPool,
        memory_pool: Any | None,
    ) -> None:
        self.ops = ops
        self.target = models[Role.TARGET]
        self.draft = models[Role.DRAFT]
        self.pool = pools[self.kv_role]
        self.states = states
        self.toggles = toggles
        self.buckets = tuple(sorted(buckets))
        self.memory_pool = memory_pool
        config, extents = self.target.config, self.extents(self.buckets[-1])
        self.window = config.window
        self.inputs = StaticInputs(contract, extents, buffers, self.target.dtype, config.hidden)
        tokens = self.listed_tokens(self.buckets[-1])
        lists = self.buckets[-1] if self.lists_per_request else tokens
        sizes = list_sizes(lists, tokens, config) if self.static_metadata else {}
        self.metadata = StaticLists(sizes, buffers)
        self.captured: dict[int, Capture[Any]] = {}

    @abstractmethod
    def forward(self, bucket: int) -> Output:
        """Run the function that is captured, over the static buffers of a bucket."""

    def capture_all(self) -> None:
        """Capture all buckets in one memory pool, the largest first: its memory fits all."""
        for bucket in reversed(self.buckets):
            self.write_metadata(bucket)
            self.preset_location(bucket)
            self.run_once(bucket)  # The warm-up. A second one would have no further effect.
            self.captured[bucket] = self.capture(bucket)

    def capture(self, bucket: int) -> Capture[Output]:
        """Capture the graph of a bucket."""
        capture: Capture[Output] = Capture(self.ops, self.memory_pool)
        capture.run(partial(self.run_once, bucket))
        # The graph may read a translation that was memoised before the capture. It is kept alive,
        # so that the graph reads a stale translation and not freed memory.
        capture.kept = self.pool.state
        return capture

    def run_once(self, bucket: int) -> Output:
        """Run the captured function of a bucket, as warm-up and capture do."""
        if Site.RUN_ONCE in self.toggles.sites:
            self.pool.invalidate_loc_cache()
        return self.forward(bucket)

    def replay(
        self, batch: ForwardBatch | None, overrides: Overrides = NOTHING_OVERRIDDEN
    ) -> ReplayResult:
        """Replay a batch in the smallest bucket that holds it, or the largest one on request.

        A batch of None is an idle step, in which all rows are padding. Raises ValueError if no
        bucket holds the batch.
        """
        live_size = 0 if batch is None else self.size(batch)
        smallest = self.bucket_for(live_size)
        if smallest is None:
            raise ValueError(f"no captured size fits {live_size} rows; captured: {self.buckets}")
        bucket = self.buckets[-1] if overrides.largest else smallest
        padded = self.padded(batch, bucket)
        self.populate(batch, bucket, padded=padded)
        overwrite(self.inputs.buffers, overrides)
        self.write_metadata(bucket)
        overwrite(self.metadata.buffers, overrides)
        output = self.launch(batch, bucket, captured=overrides.captured)
        live_rows = self.live_rows(live_size)
        return ReplayResult(
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

    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        """Return the values that a batch copies to the static inputs, by name."""
        if batch is None:
            return {}
        found = {name: batch.value(name) for name in self.inputs.buffers}
        if "out_cache_loc_swa" in found:
            found["out_cache_loc_swa"] = self.pool.translate_loc_from_full_to_swa(
                batch.out_cache_loc
            )
        return {name: values for name, values in found.items() if values is not None}

    def write_metadata(self, bucket: int) -> None:
        """Write the key lists of a bucket to its static metadata."""
        if self.static_metadata:
            self.metadata.write(self.key_lists(bucket))

    def key_lists(self, bucket: int) -> Lists:
        """Return the metadata for all tokens of a bucket, including padded ones."""
        lists = list_keys(self.queries(bucket), self.window, self.pool.pool.req_to_token)
        return translated(lists, self.pool, self.toggles)

    def queries(self, bucket: int) -> Queries:
        """Return what the tokens of a bucket attend to. By default, one token per list."""
        return Queries(
            self.view("req_pool_indices", bucket),
            self.view("seq_lens", bucket),
            self.view("seq_lens_cpu", bucket),
            self.listed_tokens(bucket),
        )

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

    def preset_location(self, bucket: int) -> None:
        """Set the pool's `swa_loc` for a capture: the runner's static buffer, or None."""
        has_one = "out_cache_loc_swa" in self.inputs.buffers and Site.PRESET in self.toggles.sites
        self.pool.set_swa_loc(self.view("out_cache_loc_swa", bucket) if has_one else None)

    def can_run(self, batch: ForwardBatch) -> bool:
        """Whether a captured graph can run this batch."""
        return batch.mode is self.mode and self.bucket_for(self.size(batch)) is not None

    def bucket_for(self, live_size: int) -> int | None:
        """Return the smallest bucket that holds `live_size`, or None."""
        return next((bucket for bucket in self.buckets if bucket >= live_size), None)

    def size(self, batch: ForwardBatch) -> int:
        """Return a batch's live size in the unit of the buckets."""
        return batch.live_tokens if self.token_buckets else batch.live_requests

    def padded(self, batch: ForwardBatch | None, bucket: int) -> bool:
        """Return whether a replay of a batch has padding."""
        return batch is None or self.size(batch) != bucket

    def live_rows(self, live_size: int) -> int:
        """Return the number of live rows in the output."""
        return live_size

    def extents(self, bucket: int) -> Extents:
        """Return the length of each axis of the static inputs for a bucket."""
        return {
            Axis.REQUEST: bucket,
            Axis.TOKEN: bucket * self.tokens_per_request,
            Axis.DRAFT_SLOT: bucket * DRAFT_STEPS,
        }

    def listed_tokens(self, bucket: int) -> int:
        """Return how many tokens of a bucket, in all its forwards, read a key list."""
        return bucket * self.tokens_per_request

    def static_keys(self, bucket: int) -> KeyLists:
        """Return the key lists that a bucket's graph reads."""
        return keys_of(self.metadata.buffers, 0, self.listed_tokens(bucket))

    def keys(self, bucket: int) -> KeyLists | None:
        """Return the key lists of the last forward, or None if it read no KV."""
        return self.static_keys(bucket)

    def view(self, name: str, bucket: int) -> Tensor:
        """Return the part of a static input that a bucket reads."""
        return self.inputs.view(name, self.extents(bucket))

    def scalar(self, value: int) -> Tensor:
        """Return a number as a tensor for the model, int32 [1]."""
        return torch.full((1,), value, dtype=torch.int32, device=self.target.device)

    def static_buffers(self) -> Mapping[str, Tensor]:
        """Return all static buffers, inputs and metadata, by name."""
        return {**self.inputs.buffers, **self.metadata.buffers}

    def operations(self, bucket: int) -> list[str]:
        """Return the names of the ops in a bucket's graph."""
        return self.captured[bucket].operations

    def expected_translations(self, scheme: LocationScheme) -> int:
        """Return the number of full-to-SWA translations that a graph must have in a scheme."""
        layers = len(self.pool.pool.config.layers_of(Kind.SWA))
        per_store = {
            LocationScheme.PER_LAYER: layers,
            LocationScheme.PRESET: 0 if "out_cache_loc_swa" in self.inputs.buffers else layers,
            LocationScheme.MEMO: 1,
        }
        return self.store_count * per_store[scheme]


def overwrite(buffers: Mapping[str, Tensor], overrides: Overrides) -> None:
    """Write the overridden elements of these buffers."""
    for name, element, value in overrides.elements:
        if name in buffers:
            buffers[name].view(-1)[element] = value
