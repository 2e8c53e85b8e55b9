"""The EAGLE draft runner: several forwards of the draft model in one graph.

The draft model shares the request table and the slot numbers with the target, but has its own KV.
Each forward writes one column of the slots that were allocated for drafting.
"""

from functools import partial
from typing import ClassVar

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import DRAFT_FORWARDS, DRAFT_STEPS, Role
from paritybit.reference.model import Output, TokenInputs
from paritybit.reference.speculative import propose
from paritybit.subjects.access import ListedKV
from paritybit.subjects.contracts import HIDDEN, SEQ_LEN_FILL_VALUE, Axis, Contract, reset
from paritybit.subjects.key_lists import Queries, keys_of
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.toggles import Site
from torch import Tensor

from paritybit.compat import override


class EagleDraftRunner(GraphRunner):
    """Full-graph drafting with the draft model's own KV."""

    name = "eagle_draft"
    mode = Mode.DRAFT
    kv_role = Role.DRAFT
    store_count = DRAFT_FORWARDS
    rows: ClassVar[Contract] = (
        reset("seq_lens", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE),
        reset("seq_lens_cpu", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE, host=True),
        reset("out_cache_loc", Axis.DRAFT_SLOT, torch.int64),
        reset("positions", Axis.TOKEN, torch.int64),
        reset("topk_p", Axis.REQUEST, torch.float32, width=1),
        reset("topk_index", Axis.REQUEST, torch.int64, width=1),
        reset("hidden_states", Axis.REQUEST, None, width=HIDDEN),
        reset("req_pool_indices", Axis.REQUEST, torch.int64),
    )

    @override
    def listed_tokens(self, bucket: int) -> int:
        return DRAFT_FORWARDS * bucket

    def queries(self, bucket: int) -> Queries:
        """Return the queries of all forwards, one after another.

        At forward s a request sees its keys and s + 1 drafts.
        """
        lengths = self.view("seq_lens", bucket)
        drafted = torch.arange(1, DRAFT_FORWARDS + 1, dtype=torch.int32)[:, None]
        return Queries(
            self.view("req_pool_indices", bucket).repeat(DRAFT_FORWARDS),
            (lengths + drafted.to(lengths.device)).flatten(),
            (self.view("seq_lens_cpu", bucket) + drafted).flatten(),
            self.listed_tokens(bucket),
        )

    def forward(self, bucket: int) -> Output:
        """Return the proposal for each request: `scores` and `tokens`."""
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
        slots = self.view("out_cache_loc", bucket).view(bucket, DRAFT_STEPS)
        keys = keys_of(self.metadata.buffers, step * bucket, bucket)
        access = ListedKV(self.draft, self.pool, slots[:, step].contiguous(), keys)
        positions = self.view("positions", bucket) + step
        payload = self.draft.fuse(self.ops, hidden)
        tokens = TokenInputs(input_ids, payload, positions, self.scalar(bucket))
        return self.draft.forward(self.ops, tokens, access)
