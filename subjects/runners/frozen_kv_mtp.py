"""The frozen-KV MTP runner: drafting that reads the target's KV and writes none.

Every forward of a draft sees the same keys, those of the target up to its last write.
"""

import torch
from paritybit.reference.batch import Mode
from paritybit.reference.config import Role
from paritybit.reference.eager import frozen_layers
from paritybit.reference.model import Output, TokenInputs
from paritybit.subjects.access import ListedKV
from paritybit.subjects.contracts import HIDDEN, SEQ_LEN_FILL_VALUE, Axis, keep, reset
from paritybit.subjects.key_lists import Queries
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.eagle_draft import EagleDraftRunner
from torch import Tensor

from paritybit.compat import override


class FrozenKvMtpRunner(EagleDraftRunner):
    """Full-graph drafting that reads the target's KV."""

    name = "frozen_kv_mtp"
    mode = Mode.FROZEN_DRAFT
    kv_role = Role.TARGET
    store_count = 0
    rows = (
        reset("seq_lens", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE),
        reset("seq_lens_cpu", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE, host=True),
        reset("positions", Axis.REQUEST, torch.int64),
        reset("req_pool_indices", Axis.REQUEST, torch.int64),
        keep("topk_p", Axis.REQUEST, torch.float32, width=1),
        keep("topk_index", Axis.REQUEST, torch.int64, width=1),
        keep("hidden_states", Axis.REQUEST, None, width=HIDDEN),
    )

    @override
    def listed_tokens(self, bucket: int) -> int:
        return bucket

    @override
    def queries(self, bucket: int) -> Queries:
        return GraphRunner.queries(self, bucket)

    @override
    def draft_forward(self, bucket: int, step: int, input_ids: Tensor, hidden: Tensor) -> Output:
        borrowed, keys = frozen_layers(self.target, self.draft), self.static_keys(bucket)
        access = ListedKV(self.draft, self.pool, None, keys, borrowed)
        tokens = TokenInputs(
            input_ids=input_ids,
            payload=self.draft.fuse(self.ops, hidden),
            positions=self.view("positions", bucket),
            live_tokens=self.scalar(bucket),
        )
        return self.draft.forward(self.ops, tokens, access)
