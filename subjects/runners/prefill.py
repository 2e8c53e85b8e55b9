"""The base class of both prefill runners: padded tokens, and eager attention between graphs.

The graphs contain all work that is done token by token. Attention runs eagerly with the real
batch's metadata, and only on the real tokens: q, k, v and all locations are narrowed. Padded tokens
therefore write no KV, and their rows of the attention output stay uninitialised.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output, TokenInputs
from paritybit.subjects.access import ListedKV
from paritybit.subjects.contracts import HIDDEN, PRESET_ONLY, Axis, Extents, keep, reset
from paritybit.subjects.graphs.capture import Capture
from paritybit.subjects.key_lists import fresh_keys
from paritybit.subjects.protocol import KeyLists, Overrides, ReplayResult
from paritybit.subjects.runners.base import NOTHING_OVERRIDDEN, GraphRunner
from paritybit.subjects.states import extend_paths
from paritybit.subjects.toggles import LocationScheme
from torch import Tensor

from paritybit.compat import override

MOST_REQUESTS = 8
"""The maximum number of requests in a prefill batch."""


class BreakingAttention:
    """KV access whose attention breaks the capture: it runs eagerly, now and at each replay.

    `outputs` are the attention outputs, static if there is a capture.
    """

    def __init__(self, runner: "PrefillRunner", capture: Capture[Output] | None) -> None:
        self.runner = runner
        self.capture = capture
        self.outputs: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return uninitialised memory, of which the break fills the rows of live tokens."""
        mixed = query.new_empty(query.shape)
        self.outputs.append(mixed)
        eager = partial(self.runner.attend, layer, (query, key, value), mixed)
        if self.capture is None:
            eager()
        else:
            self.capture.break_here(eager)
        return mixed


class PrefillRunner(GraphRunner):
    """Extends requests by graphs around eager attention, padded on the token axis."""

    mode = Mode.EXTEND
    token_buckets = True
    static_metadata = False
    store_count = 0
    attention_captured = False
    rows = (
        reset("out_cache_loc", Axis.TOKEN, torch.int64),
        reset("out_cache_loc_swa", Axis.TOKEN, torch.int32, schemes=PRESET_ONLY),
        reset("input_ids", Axis.TOKEN, torch.int64),
        reset("positions", Axis.TOKEN, torch.int64),
        reset("input_embeds", Axis.TOKEN, torch.float32, width=HIDDEN),
        keep("mamba_track_indices", Axis.REQUEST, torch.int64),
    )
    access: ListedKV | None = None

    @override
    def extents(self, bucket: int) -> Extents:
        return {Axis.TOKEN: bucket, Axis.REQUEST: MOST_REQUESTS}

    @override
    def can_run(self, batch: ForwardBatch) -> bool:
        return super().can_run(batch) and batch.live_requests <= MOST_REQUESTS

    def keys(self, bucket: int) -> KeyLists | None:
        """Return the fresh key lists of the live tokens. They exist only during a replay."""
        return None if self.access is None else self.access.lists

    def preset_location(self, bucket: int) -> None:
        """Do nothing, because KV is stored between the graphs."""

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Populate the static inputs, with the payload as input embeddings.

        This also scans the recurrent states, before the graphs run.
        """
        super().populate(batch, bucket, padded=padded)
        if batch is not None:
            requests = batch.token_requests
            slots = self.inputs.buffers["mamba_track_indices"]
            paths = extend_paths(slots, requests, batch.positions, batch.longest)
            payload = self.target.advance_states(self.ops, self.states, paths, batch.input_ids)
            self.inputs.populate({"input_embeds": payload}, padded=False)

    @override
    def launch(self, batch: ForwardBatch | None, bucket: int, *, captured: bool = True) -> Output:
        if self.toggles.scheme is LocationScheme.PRESET:
            self.pool.set_swa_loc(self.view("out_cache_loc_swa", bucket))
        if batch is not None:
            loc = self.view("out_cache_loc", bucket)[: batch.live_tokens]
            keys = fresh_keys(batch, self.window, self.pool, self.toggles)
            self.access = ListedKV(self.target, self.pool, loc, keys)
        return super().launch(batch, bucket, captured=captured)

    def replay(
        self, batch: ForwardBatch | None, overrides: Overrides = NOTHING_OVERRIDDEN
    ) -> ReplayResult:
        """Replay the graphs, then compute the logits of each request's last token eagerly."""
        try:
            replay = super().replay(batch, overrides)
        finally:
            self.access = None
        hidden = replay.output["hidden"][: replay.live_size]
        live_output = {"hidden": hidden}
        if batch is not None:
            live_output["logits"] = self.target.logits(self.ops, hidden[batch.last_rows])
        # Rows of padded tokens are uninitialised memory, so only live rows are defined.
        return replace(replay, live_output=live_output, defined=live_output)

    def capture(self, bucket: int) -> Capture[Output]:
        """Capture one forward in segments, without live tokens."""
        capture: Capture[Output] = Capture(self.ops, self.memory_pool)
        return capture.run(lambda: self.forward(bucket, capture))

    def forward(self, bucket: int, capture: Capture[Output] | None = None) -> Output:
        """Run the forward over the static inputs, and break `capture` at attention."""
        tokens = TokenInputs(
            input_ids=self.view("input_ids", bucket),
            payload=self.view("input_embeds", bucket),
            positions=self.view("positions", bucket),
            live_tokens=self.scalar(bucket),
        )
        access = BreakingAttention(self, capture)
        output = {"hidden": self.target.run_layers(self.ops, tokens, access)}
        if capture is not None:
            capture.kept = access.outputs
        return output

    def attend(self, layer: int, heads: tuple[Tensor, Tensor, Tensor], mixed: Tensor) -> None:
        """Run a layer's attention on the live tokens, into their rows of `mixed`."""
        if self.access is not None:
            n = len(self.access.lists.full.begin)
            mixed[:n] = self.access.attend(layer, *(values[:n] for values in heads))

    @override
    def static_buffers(self) -> Mapping[str, Tensor]:
        outputs = [output for capture in self.captured.values() for output in capture.kept]
        return {
            **super().static_buffers(),
            **{f"attention_output_{place}": output for place, output in enumerate(outputs)},
        }
