"""The EAGLE draft runner: several forwards of the draft model in one graph, with `topk` branches.

The draft model shares the request table and the slot numbers with the target, but has its own KV.
Each forward writes one column of the slots that were allocated for drafting.
"""

from functools import partial
from typing import ClassVar

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import SPECULATION, Role
from paritybit.reference.model import Output, TokenInputs
from paritybit.reference.speculative import propose
from paritybit.subjects.access import ListedKV
from paritybit.subjects.contracts import HIDDEN, SEQ_LEN_FILL_VALUE, TOPK, Axis, Contract, reset
from paritybit.subjects.key_lists import Queries, draft_queries, keys_of
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.toggles import Site
from torch import Tensor


class EagleDraftRunner(GraphRunner):
    """Full-graph drafting with the draft model's own KV."""

    name = "eagle_draft"
    mode = Mode.DRAFT
    kv_role = Role.DRAFT
    store_count = SPECULATION.forwards
    rows: ClassVar[Contract] = (
        reset("seq_lens", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE),
        reset("seq_lens_cpu", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE, host=True),
        reset("out_cache_loc", Axis.DRAFT_SLOT, torch.int64),
        reset("positions", Axis.TOKEN, torch.int64),
        reset("topk_p", Axis.REQUEST, torch.float32, width=TOPK),
        reset("topk_index", Axis.REQUEST, torch.int64, width=TOPK),
        reset("hidden_states", Axis.REQUEST, None, width=HIDDEN),
        reset("req_pool_indices", Axis.REQUEST, torch.int64),
    )

    def listed_tokens(self, bucket: int) -> int:
        """Return the number of branches in all forwards of a draft."""
        return SPECULATION.forwards * self.topk * bucket

    def queries(self, bucket: int) -> Queries:
        """Return what every branch attends to in every forward."""
        return draft_queries(
            self.view("req_pool_indices", bucket),
            self.view("seq_lens", bucket),
            self.view("seq_lens_cpu", bucket),
            self.topk,
        )

    def forward(self, bucket: int) -> Output:
        """Return all candidates of each request: `scores`, `tokens` and `chosen`."""
        return propose(
            self.ops,
            self.view("topk_p", bucket),
            self.view("topk_index", bucket),
            self.view("hidden_states", bucket),
            partial(self.draft_forward, bucket),
        )

    def draft_forward(self, bucket: int, step: int, input_ids: Tensor, hidden: Tensor) -> Output:
        """Run one forward of a draft."""
        if Site.RUN_ONCE in self.toggles.sites:
            self.pool.invalidate_loc_cache()
        branches = bucket * self.topk
        slots = self.view("out_cache_loc", bucket).view(branches, SPECULATION.steps)
        keys = keys_of(self.metadata.buffers, step * branches, branches)
        access = ListedKV(self.ops, self.draft, self.pool, slots[:, step].contiguous(), keys)
        positions = self.view("positions", bucket) + step
        payload = self.draft.fuse(self.ops, hidden)
        tokens = TokenInputs(input_ids, payload, positions, self.scalar(branches))
        return self.draft.forward(self.ops, tokens, access)
