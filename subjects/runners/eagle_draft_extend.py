"""The EAGLE draft-extend runner: the draft model processes the accepted tokens.

Requests have different numbers of tokens, packed one after another. A bucket has room for the
longest verified path of every request. The static inputs determine which rows are live.
"""

from dataclasses import replace

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import DRAFT_TOKENS, Role
from paritybit.reference.model import Output, TokenInputs
from paritybit.reference.speculative import likeliest
from paritybit.subjects.access import ListedKV
from paritybit.subjects.contracts import HIDDEN, SEQ_LEN_FILL_VALUE, Axis, keep, reset
from paritybit.subjects.key_lists import Queries
from paritybit.subjects.runners.base import GraphRunner
from torch import Tensor

from paritybit.compat import override

K = DRAFT_TOKENS
"""The most tokens of a request: all that a verify runs."""


class EagleDraftExtendRunner(GraphRunner):
    """Full-graph draft forward over the accepted tokens."""

    name = "eagle_draft_extend"
    mode = Mode.DRAFT_EXTEND
    kv_role = Role.DRAFT
    rows = (
        reset("seq_lens", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE),
        reset("out_cache_loc", Axis.TOKEN, torch.int64, allocated=1),
        reset("positions", Axis.TOKEN, torch.int64),
        reset("req_pool_indices", Axis.REQUEST, torch.int64),
        reset("num_correct_drafts", Axis.REQUEST, torch.int32, K),
        reset("num_accept_tokens", Axis.REQUEST, torch.int32, K),
        reset("extend_seq_lens", Axis.REQUEST, torch.int32, K),
        keep("input_ids", Axis.TOKEN, torch.int64),
        keep("hidden_states", Axis.TOKEN, None, width=HIDDEN),
        reset("seq_lens_cpu", Axis.REQUEST, torch.int32, SEQ_LEN_FILL_VALUE, host=True),
        reset("extend_seq_lens_cpu", Axis.REQUEST, torch.int32, K, host=True),
    )

    tokens_per_request = K
    lists_per_request = True

    @override
    def can_run(self, batch: ForwardBatch) -> bool:
        return super().can_run(batch) and batch.longest <= K

    @override
    def padded(self, batch: ForwardBatch | None, bucket: int) -> bool:
        return batch is None or batch.live_tokens != bucket * K

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Populate the static inputs. Host inputs are reset only if requests are padded."""
        on_host = batch is None or batch.live_requests != bucket
        live_values = self.live_values(batch, bucket)
        self.inputs.populate(live_values, padded=padded, padded_on_host=on_host)

    @override
    def queries(self, bucket: int) -> Queries:
        return replace(
            super().queries(bucket),
            counts=self.view("num_accept_tokens", bucket),
            counts_cpu=self.view("extend_seq_lens_cpu", bucket),
        )

    def forward(self, bucket: int) -> Output:
        """Return `logits`, `hidden`, `topk_p` and `topk_index` of each request's last token."""
        tokens = TokenInputs(
            input_ids=self.view("input_ids", bucket),
            payload=self.draft.fuse(self.ops, self.view("hidden_states", bucket)),
            positions=self.view("positions", bucket),
            live_tokens=self.scalar(bucket * K),
        )
        loc, keys = self.view("out_cache_loc", bucket), self.static_keys(bucket)
        access = ListedKV(self.draft, self.pool, loc, keys)
        hidden = self.draft.run_layers(self.ops, tokens, access)
        counts = self.view("extend_seq_lens", bucket)
        ends = self.query_ends(counts)
        accepted = ends - counts + self.view("num_correct_drafts", bucket).clamp(max=K - 1)
        output = {
            "logits": self.draft.logits(self.ops, hidden[ends - 1]),
            "hidden": hidden[accepted],
        }
        return likeliest(self.ops, output)

    def query_ends(self, counts: Tensor) -> Tensor:
        """Return the end row of each request, exclusive. Requests with `counts` rows lie packed."""
        return counts.cumsum(0)
