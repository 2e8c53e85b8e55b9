"""The decode runner: one token per request, padded on the request axis.

As in the engine, the verify runner is a subclass, with k tokens per request.
"""

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.model import Output, StatePaths, TokenInputs
from paritybit.subjects.access import ListedKV
from paritybit.subjects.contracts import (
    PRESET_ONLY,
    SEQ_LEN_FILL_VALUE,
    Axis,
    Contract,
    keep,
    reset,
)
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.states import decode_paths
from torch import Tensor

from paritybit.compat import override

ROWS: Contract = (
    keep("input_ids", Axis.TOKEN, torch.int64),
    reset("positions", Axis.TOKEN, torch.int64),
    reset("req_pool_indices", Axis.REQUEST, torch.int64),
    reset("seq_lens", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE),
    reset("seq_lens_cpu", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE, host=True),
    reset("out_cache_loc", Axis.TOKEN, torch.int64),
    reset("out_cache_loc_swa", Axis.TOKEN, torch.int32, schemes=PRESET_ONLY),
    reset("mamba_track_indices", Axis.REQUEST, torch.int64),
    keep("num_token_non_padded", Axis.SCALAR, torch.int32),
    keep("global_num_tokens", Axis.SCALAR, torch.int32),
)


class DecodeRunner(GraphRunner):
    """Full-graph decode of one token per request."""

    name = "decode"
    mode = Mode.DECODE
    rows = ROWS

    @override
    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        return {
            "num_token_non_padded": self.scalar(0),
            **super().live_values(batch, bucket),
            "global_num_tokens": self.scalar(bucket * self.tokens_per_request),
        }

    def state_paths(self, bucket: int) -> StatePaths:
        """Return the paths of the recurrent states of a bucket's tokens."""
        return decode_paths(self.view("mamba_track_indices", bucket))

    @override
    def live_rows(self, live_size: int) -> int:
        return live_size * self.tokens_per_request

    def forward(self, bucket: int) -> Output:
        """Return `logits` and `hidden` of every token of the bucket."""
        input_ids = self.view("input_ids", bucket)
        tokens = TokenInputs(
            input_ids=input_ids,
            payload=self.target.advance_states(
                self.ops, self.states, self.state_paths(bucket), input_ids
            ),
            positions=self.view("positions", bucket),
            live_tokens=self.view("num_token_non_padded", bucket),
        )
        loc, keys = self.view("out_cache_loc", bucket), self.static_keys(bucket)
        access = ListedKV(self.target, self.pool, loc, keys)
        return self.target.forward(self.ops, tokens, access)
