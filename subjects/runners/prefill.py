"""The base class of both prefill runners: padded tokens, and eager attention between graphs.

The graphs contain all work that is done token by token. Attention runs eagerly with the real
batch's metadata, and only on the real tokens: q, k, v and all locations are narrowed. Padded tokens
therefore write no KV, and their rows of the attention output stay uninitialised.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Heads, Output
from paritybit.subjects.access import ListedKV
from paritybit.subjects.contracts import (
    HIDDEN,
    Axis,
    Contract,
    Extents,
    Policy,
    StaticInput,
    keep,
    reset,
)
from paritybit.subjects.graphs.capture import Capture
from paritybit.subjects.key_lists import fresh_span_keys
from paritybit.subjects.protocol import KeyLists, Overrides, Replay
from paritybit.subjects.runners.base import (
    NOTHING_OVERRIDDEN,
    WARM_UP_RUNS,
    GraphRunner,
)
from paritybit.subjects.states import extend_paths
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

MOST_REQUESTS = 8
"""The maximum number of requests in a prefill batch."""

ROWS: Contract = (
    reset("out_cache_loc", Axis.TOKEN, torch.int64),
    StaticInput(
        "out_cache_loc_swa",
        Axis.TOKEN,
        torch.int32,
        Policy.RESET,
        schemes=frozenset({LocationScheme.PRESET}),
    ),
    reset("input_ids", Axis.TOKEN, torch.int64),
    reset("positions", Axis.TOKEN, torch.int64),
    reset("mrope_positions", Axis.MROPE, torch.int64),
    reset("input_embeds", Axis.TOKEN, torch.float32, width=HIDDEN),
    keep("mamba_track_indices", Axis.REQUEST, torch.int64),
    keep("mamba_track_mask", Axis.REQUEST, torch.bool),
)


class PrefillRunner(GraphRunner):
    """Extends requests by graphs around eager attention, padded on the token axis."""

    mode = Mode.EXTEND
    token_buckets = True
    ragged = True
    store_count = 0
    attention_captured = False
    rows = ROWS
    access: ListedKV | None
    tokens: int

    def extents(self, bucket: int) -> Extents:
        """Return the extents of a bucket of tokens."""
        return {Axis.TOKEN: bucket, Axis.REQUEST: MOST_REQUESTS}

    def can_run(self, batch: ForwardBatch) -> bool:
        """Whether a captured graph can run this batch. Its inputs have room for MOST_REQUESTS."""
        return super().can_run(batch) and batch.live_requests <= MOST_REQUESTS

    def metadata_sizes(self, bucket: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return no buffers, because metadata is fresh."""
        return {}

    def plan(self, bucket: int) -> None:
        """Do nothing, because attention uses the real batch's metadata."""

    def keys(self, bucket: int) -> KeyLists | None:
        """Return the fresh key lists of the live tokens. Padded tokens do not attend.

        The lists exist only during a replay.
        """
        return None if self.access is None else self.access.lists

    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        """Return the batch's tensors."""
        return {} if batch is None else self.batch_inputs(batch)

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Populate the static inputs, with the payload as input embeddings.

        This also scans the recurrent states, before the graphs run.
        """
        super().populate(batch, bucket, padded=padded)
        if batch is not None:
            requests = batch.token_requests
            slots = self.inputs.buffers["mamba_track_indices"]
            paths = extend_paths(slots, requests, batch.positions, batch.longest)
            states = self.target.advance_states(
                self.ops, self.states.recurrent, paths, batch.input_ids
            )
            payload = self.target.payload(
                self.ops,
                states,
                self.inputs.buffers["mamba_track_mask"].take(requests),
                batch.encoder_lens.take(requests),
            )
            self.inputs.populate({"input_embeds": payload}, padded=False)

    def launch(self, batch: ForwardBatch | None, bucket: int, *, captured: bool = True) -> Output:
        """Run the bucket's graphs, with attention between them."""
        if self.toggles.scheme is LocationScheme.PRESET:
            self.pool.set_swa_loc(self.view("out_cache_loc_swa", bucket))
        self.access, self.tokens = None, 0
        if batch is not None:
            self.tokens = batch.live_tokens
            self.access = self.listed_kv(
                self.ops,
                self.target,
                self.pool,
                self.view("out_cache_loc", bucket)[: self.tokens],
                self.fresh_keys(batch),
            )
        return super().launch(batch, bucket, captured=captured)

    def fresh_keys(self, batch: ForwardBatch) -> KeyLists:
        """Return the keys of a batch's tokens."""
        return fresh_span_keys(batch, self.window, self.pool, self.toggles.memo_resets)

    def replay(
        self, batch: ForwardBatch | None, overrides: Overrides = NOTHING_OVERRIDDEN
    ) -> Replay:
        """Replay the graphs, then compute the logits of each request's last token eagerly.

        The replay includes the key lists of the batch. The runner does not keep them.
        """
        try:
            replay = super().replay(batch, overrides)
        finally:
            self.access, self.tokens = None, 0
        hidden = replay.output["hidden"][: replay.live_size]
        live_output = {"hidden": hidden}
        if batch is not None:
            live_output["logits"] = self.target.logits(self.ops, hidden[batch.last_rows])
        # Rows of padded tokens are uninitialised memory, so only live rows are defined.
        return replace(replay, live_output=live_output, defined=live_output)

    def attend(self, layer: int, heads: Heads, mixed: Tensor) -> None:
        """Run a layer's attention on the live tokens, into their rows of `mixed`."""
        if self.access is not None:
            n = self.tokens
            mixed[:n] = self.access.attend(layer, heads.query[:n], heads.key[:n], heads.value[:n])

    def output_buffer(self, query: Tensor) -> Tensor:
        """Return uninitialised output memory for `query`. It is static if made during capture."""
        mixed = query.new_empty(query.shape)
        if self.capturing:
            self.mixed.append(mixed)
        return mixed

    def static_buffers(self) -> Mapping[str, Tensor]:
        """Return all static buffers by name, including the attention outputs of all graphs."""
        outputs = {f"attention_output_{place}": output for place, output in enumerate(self.mixed)}
        return {**super().static_buffers(), **outputs}

    def capture_all(self) -> None:
        """Capture every bucket, largest first, without live tokens."""
        self.access, self.tokens = None, 0
        self.capturing = False
        for bucket in reversed(self.buckets):
            for _ in range(WARM_UP_RUNS):
                self.run_once(bucket)
            self.capturing = True
            self.captured[bucket] = self.capture(bucket)
            self.capturing = False

    @abstractmethod
    def capture(self, bucket: int) -> Capture[Output]:
        """Capture the graphs of a bucket."""
