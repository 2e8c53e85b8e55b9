"""The frozen-KV MTP runner: drafting that reads the target's KV and writes none.

Every forward of a draft sees the same keys, those of the target up to its last write. The rows of
the index inputs are branches. The rows of the drafting state are requests.
"""

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.eager import draft_inputs, frozen_layers
from paritybit.reference.model import Output
from paritybit.reference.speculative import keep_candidates, propose
from paritybit.subjects.contracts import (
    HIDDEN,
    SEQ_LEN_FILL_VALUE,
    TOPK,
    Axis,
    Extents,
    keep,
    reset,
)
from paritybit.subjects.key_lists import row_keys, row_lists, row_sizes
from paritybit.subjects.protocol import KeyLists
from paritybit.subjects.runners.base import GraphRunner, request_extents
from torch import Tensor

PER_BRANCH = ("seq_lens", "seq_lens_cpu", "req_pool_indices")


class FrozenKvMtpRunner(GraphRunner):
    """Full-graph drafting that reads the target's KV."""

    name = "frozen_kv_mtp"
    mode = Mode.FROZEN_DRAFT
    store_count = 0
    rows = (
        reset("seq_lens", Axis.TOKEN, torch.int32, SEQ_LEN_FILL_VALUE),
        reset("seq_lens_cpu", Axis.TOKEN, torch.int32, SEQ_LEN_FILL_VALUE, host=True),
        reset("positions", Axis.TOKEN, torch.int64),
        reset("req_pool_indices", Axis.TOKEN, torch.int64),
        keep("topk_p", Axis.REQUEST, torch.float32, width=TOPK),
        keep("topk_index", Axis.REQUEST, torch.int64, width=TOPK),
        keep("hidden_states", Axis.REQUEST, None, width=HIDDEN),
        keep("mrope_positions", Axis.MROPE, torch.int64),
    )

    def extents(self, bucket: int) -> Extents:
        """Return the extents of a bucket of requests, with `topk` rows per request."""
        return request_extents(bucket, self.topk)

    def metadata_sizes(self, bucket: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return the buffers of one key list per branch."""
        config = self.target.config
        return row_sizes(bucket * self.topk, config.max_context, config.window)

    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        """Return the batch's tensors. Per-request tensors are repeated for each branch."""
        found = {} if batch is None else self.batch_inputs(batch)
        return {
            name: values[:, None].expand(-1, self.topk).reshape(-1)
            if name in PER_BRANCH
            else values
            for name, values in found.items()
        }

    def plan(self, bucket: int) -> None:
        """List the target's keys for every branch."""
        self.list_rows(bucket, row_lists)

    def keys(self, bucket: int) -> KeyLists:
        """Return the static key lists of every branch, the same for every forward of a draft."""
        return row_keys(self.metadata.buffers, 0, bucket * self.topk)

    def forward(self, bucket: int) -> Output:
        """Return all candidates of each request: `scores`, `tokens` and `chosen`.

        Scores and tokens are also scattered into the requests' rows of the draft table.
        """
        rows = bucket * self.topk
        borrowed = frozen_layers(self.target, self.draft)
        access = self.listed_kv(self.ops, self.draft, self.pool, None, self.keys(bucket), borrowed)

        def run(step: int, input_ids: Tensor, hidden: Tensor) -> Output:
            tokens = draft_inputs(
                self.ops,
                self.draft,
                input_ids,
                hidden,
                self.view("positions", bucket),
                self.scalar(rows),
                self.view("mrope_positions", bucket),
            )
            return self.draft.forward(self.ops, tokens, access)

        output = propose(
            self.ops,
            self.view("topk_p", bucket),
            self.view("topk_index", bucket),
            self.view("hidden_states", bucket),
            run,
        )
        of_branches = self.view("req_pool_indices", bucket).view(bucket, self.topk)
        request_rows = of_branches[:, 0].contiguous()
        keep_candidates(self.ops, self.states.draft_table, request_rows, output)
        return output
