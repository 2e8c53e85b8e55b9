"""The EAGLE draft-extend runner: the draft model processes the accepted tokens.

Requests have different numbers of tokens, packed one after another. A bucket has room for the
longest verified path of every request. The static inputs determine which rows are live.
"""

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import SPECULATION, Role
from paritybit.reference.eager import draft_inputs
from paritybit.reference.model import Output
from paritybit.reference.speculative import likeliest
from paritybit.subjects.contracts import HIDDEN, SEQ_LEN_FILL_VALUE, Axis, Extents, keep, reset
from paritybit.subjects.key_lists import span_keys, span_lists, span_sizes
from paritybit.subjects.protocol import KeyLists
from paritybit.subjects.runners.base import GraphRunner, request_extents
from torch import Tensor

K = SPECULATION.extend_tokens


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

    def extents(self, bucket: int) -> Extents:
        """Return the extents of a bucket of requests with K tokens each."""
        return request_extents(bucket, K)

    def metadata_sizes(self, bucket: int) -> dict[str, tuple[int, torch.dtype]]:
        """Return the buffers of one key list per request."""
        config = self.draft.config
        return span_sizes(bucket, bucket * K, config.max_context, config.window)

    def can_run(self, batch: ForwardBatch) -> bool:
        """Whether every request has at most K tokens."""
        return super().can_run(batch) and all(s.end - s.begin <= K for s in batch.spans)

    def padded(self, batch: ForwardBatch | None, bucket: int) -> bool:
        """Return whether any token of the bucket is padding."""
        return batch is None or batch.live_tokens != bucket * K

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Populate the static inputs. Host inputs are reset only if requests are padded."""
        on_host = batch is None or batch.live_requests != bucket
        live_values = self.live_values(batch, bucket)
        self.inputs.populate(live_values, padded=padded, padded_on_host=on_host)

    def live_values(self, batch: ForwardBatch | None, bucket: int) -> dict[str, Tensor]:
        """Return the batch's tensors and the token counts on the host."""
        if batch is None:
            return {}
        counts = torch.tensor([s.end - s.begin for s in batch.spans], dtype=torch.int32)
        return {**self.batch_inputs(batch), "extend_seq_lens_cpu": counts}

    def plan(self, bucket: int) -> None:
        """List the keys of every token."""
        self.metadata.write(
            span_lists(
                self.view("req_pool_indices", bucket),
                self.view("seq_lens", bucket),
                self.view("num_accept_tokens", bucket),
                self.view("seq_lens_cpu", bucket),
                self.view("extend_seq_lens_cpu", bucket),
                bucket * K,
                self.window,
                self.pool,
                self.toggles.memo_resets,
            )
        )

    def keys(self, bucket: int) -> KeyLists:
        """Return the static key lists of every token."""
        return span_keys(self.metadata.buffers, bucket * K)

    def forward(self, bucket: int) -> Output:
        """Return `logits`, `hidden`, `topk_p` and `topk_index` of each request's last token."""
        tokens = draft_inputs(
            self.ops,
            self.draft,
            self.view("input_ids", bucket),
            self.view("hidden_states", bucket),
            self.view("positions", bucket),
            self.scalar(bucket * K),
        )
        loc = self.view("out_cache_loc", bucket)
        access = self.listed_kv(self.ops, self.draft, self.pool, loc, self.keys(bucket))
        hidden = self.draft.run_layers(self.ops, tokens, access)
        counts = self.view("extend_seq_lens", bucket)
        ends = self.query_ends(counts)
        accepted = ends - counts + self.view("num_correct_drafts", bucket).clamp(max=K - 1)
        output = {
            "logits": self.draft.logits(self.ops, hidden[ends - 1]),
            "hidden": hidden[accepted],
        }
        return likeliest(self.ops, output, self.topk)

    def query_ends(self, counts: Tensor) -> Tensor:
        """Return the end row of each request, exclusive. Requests with `counts` rows lie packed."""
        return counts.cumsum(0)
