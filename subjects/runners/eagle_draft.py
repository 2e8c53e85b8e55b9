"""The EAGLE draft runner: several forwards of the draft model in one graph, with `topk` branches.

The draft model shares the request table and the slot numbers with the target, but has its own KV.
Each forward writes one column of the slots that were allocated for drafting.
"""

from functools import partial

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import SPECULATION, Role
from paritybit.reference.eager import draft_inputs
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
from paritybit.subjects.key_lists import draft_lists, row_keys, row_sizes
from paritybit.subjects.protocol import KeyLists
from paritybit.subjects.runners.base import GraphRunner, request_extents
from torch import Tensor


class EagleDraftRunner(GraphRunner):
    """Full-graph drafting with the draft model's own KV."""

    name = "eagle_draft"
    mode = Mode.DRAFT
    kv_role = Role.DRAFT
    store_count = SPECULATION.forwards
    rows = (
        keep("input_ids", Axis.TOKEN, torch.int64),
        keep("mrope_positions", Axis.MROPE, torch.int64),
        keep("extend_seq_lens", Axis.REQUEST, torch.int32),
        reset("seq_lens", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE),
        reset("seq_lens_cpu", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE, host=True),
        reset("out_cache_loc", Axis.DRAFT_SLOT, torch.int64),
        reset("positions", Axis.TOKEN, torch.int64),
        reset("topk_p", Axis.REQUEST, torch.float32, width=TOPK),
        reset("topk_index", Axis.REQUEST, torch.int64, width=TOPK),
        reset("hidden_states", Axis.REQUEST, None, width=HIDDEN),
        reset("req_pool_indices", Axis.REQUEST, torch.int64),
    )
    never_populated = frozenset({"input_ids", "mrope_positions", "extend_seq_lens"})

    def extents(self, bucket: int) -> Extents:
        """Return the extents of a bucket: `topk` rows and all draft slots per request."""
        slots = bucket * self.draft.config.speculation.slots
        return {**request_extents(bucket, self.topk), Axis.DRAFT_SLOT: slots}

    def metadata_sizes(self, bucket: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return the buffers of one key list per branch and forward."""
        config = self.draft.config
        rows = SPECULATION.forwards * self.topk * bucket
        return row_sizes(rows, config.max_context, config.window)

    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        """Return the tensors of the batch that this runner populates."""
        found = {} if batch is None else self.batch_inputs(batch)
        return {name: found[name] for name in found if name not in self.never_populated}

    def plan(self, bucket: int) -> None:
        """List the keys of every branch for every forward."""
        self.list_rows(bucket, partial(draft_lists, topk=self.topk))

    def keys(self, bucket: int) -> KeyLists:
        """Return the static key lists of every branch, one forward after another."""
        rows = SPECULATION.forwards * self.topk * bucket
        return row_keys(self.metadata.buffers, 0, rows)

    def forward(self, bucket: int) -> Output:
        """Return all candidates of each request: `scores`, `tokens` and `chosen`.

        Scores and tokens are also scattered into the requests' rows of the draft table.
        """
        rows = bucket * self.topk
        positions = self.view("positions", bucket)
        slots = self.view("out_cache_loc", bucket).view(rows, SPECULATION.steps)
        by_step = slots.T.contiguous()

        def run(step: int, input_ids: Tensor, hidden: Tensor) -> Output:
            if self.toggles.memo_resets.run_once:
                self.pool.invalidate_loc_cache()
            keys = row_keys(self.metadata.buffers, step * rows, rows)
            access = self.listed_kv(self.ops, self.draft, self.pool, by_step[step], keys)
            tokens = draft_inputs(
                self.ops, self.draft, input_ids, hidden, positions + step, self.scalar(rows)
            )
            return self.draft.forward(self.ops, tokens, access)

        output = propose(
            self.ops,
            self.view("topk_p", bucket),
            self.view("topk_index", bucket),
            self.view("hidden_states", bucket),
            run,
        )
        request_rows = self.view("req_pool_indices", bucket)
        keep_candidates(self.ops, self.states.draft_table, request_rows, output)
        return output
