"""The frozen-KV MTP runner: drafting that reads the target's KV and writes none.

Every forward of a draft sees the same keys, those of the target up to its last write. The rows of
the index inputs are branches. The rows of the drafting state are requests.
"""

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import Role
from paritybit.reference.eager import frozen_layers
from paritybit.reference.model import Output, TokenInputs
from paritybit.subjects.access import ListedKV
from paritybit.subjects.contracts import HIDDEN, SEQ_LEN_FILL_VALUE, TOPK, Axis, keep, reset
from paritybit.subjects.key_lists import Queries
from paritybit.subjects.runners.base import GraphRunner
from paritybit.subjects.runners.eagle_draft import EagleDraftRunner
from torch import Tensor

PER_BRANCH = frozenset({"seq_lens", "seq_lens_cpu", "req_pool_indices"})


class FrozenKvMtpRunner(EagleDraftRunner):
    """Full-graph drafting that reads the target's KV."""

    name = "frozen_kv_mtp"
    mode = Mode.FROZEN_DRAFT
    kv_role = Role.TARGET
    store_count = 0
    rows = (
        reset("seq_lens", Axis.TOKEN, torch.int32, SEQ_LEN_FILL_VALUE),
        reset("seq_lens_cpu", Axis.TOKEN, torch.int32, SEQ_LEN_FILL_VALUE, host=True),
        reset("positions", Axis.TOKEN, torch.int64),
        reset("req_pool_indices", Axis.TOKEN, torch.int64),
        keep("topk_p", Axis.REQUEST, torch.float32, width=TOPK),
        keep("topk_index", Axis.REQUEST, torch.int64, width=TOPK),
        keep("hidden_states", Axis.REQUEST, None, width=HIDDEN),
    )

    def listed_tokens(self, bucket: int) -> int:
        """Return the number of branches. All forwards of a draft read the same lists."""
        return self.topk * bucket

    def queries(self, bucket: int) -> Queries:
        """Return the target's keys for every branch."""
        return GraphRunner.queries(self, bucket)

    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        """Return the batch's tensors. Some per-request tensors are repeated for each branch."""
        return {
            name: values[:, None].expand(-1, self.topk).reshape(-1)
            if name in PER_BRANCH
            else values
            for name, values in super().live_values(batch, bucket).items()
        }

    def draft_forward(self, bucket: int, step: int, input_ids: Tensor, hidden: Tensor) -> Output:
        """Run one forward of a draft, at the same positions and over the same keys as all."""
        borrowed, keys = frozen_layers(self.target, self.draft), self.static_keys(bucket)
        access = ListedKV(self.ops, self.draft, self.pool, None, keys, borrowed)
        tokens = TokenInputs(
            input_ids=input_ids,
            payload=self.draft.fuse(self.ops, hidden),
            positions=self.view("positions", bucket),
            live_tokens=self.scalar(bucket * self.topk),
        )
        return self.draft.forward(self.ops, tokens, access)
