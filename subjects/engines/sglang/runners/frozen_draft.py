"""The engine's frozen-KV runner: drafts that read the target's KV and write none."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import SPECULATION, Kind, Role
from paritybit.reference.eager import frozen_layers
from paritybit.reference.model import Output
from paritybit.subjects.engines.sglang.runners.decode import RowSlots, listed
from paritybit.subjects.engines.sglang.runners.drafting import ran
from paritybit.subjects.engines.sglang.runners.eagle_draft import ProposingRunner
from torch import Tensor

RUNNER = "srt.speculative.frozen_kv_mtp_cuda_graph_runner"


class FrozenKvMtpRunner(ProposingRunner):
    """The runner of drafts over the target's KV.

    Some engines find where drafting starts by a forward of their own, the first of each graph,
    from the last token. Ours starts where the draft model has caught up: that forward is
    answered by what the draft model says of its hidden state, and attends to nothing.
    """

    name = "frozen_kv_mtp"
    mode = Mode.FROZEN_DRAFT
    places = (f"{RUNNER}:FrozenKVMTPCudaGraphRunner",)
    worker_places = (
        "srt.speculative.frozen_kv_mtp_worker:FrozenKVMTPWorker",
        "srt.speculative.frozen_kv_mtp_worker_v2:FrozenKVMTPDraftWorker",
    )
    methods = (
        "draft_forward",
        "_frozen_kv_target_view",
        "_target_kv_pool_view",
        "_set_positions",
        "_init_frozen_kv_metadata_capture_cuda_graph",
        "_init_frozen_kv_metadata_replay_cuda_graph",
    )
    input_places = ("srt.speculative.frozen_kv_mtp_info:FrozenKVMTPDraftInput",)

    def made_from(self) -> Any:
        """Return a stand-in for the worker that the runner serves."""
        part = self.host.engine.part
        inputs = fields(part(f"{RUNNER}:FrozenKVMTPInputBuffers"))
        self.seeded = "bonus_tokens" in {field.name for field in inputs}
        if self.seeded:  # What it starts from it finds by that forward.
            self.unpopulated = frozenset({"topk_p", "topk_index"})
        borrowed = frozen_layers(self.models[Role.TARGET], self.models[Role.DRAFT])
        self.frozen = self.draft_model_runner(Role.TARGET, borrowed)
        model, forward = self.frozen.model, self.frozen.forward
        ends = self.pool.requests.size * SPECULATION.topk + 1
        self.draft_backend = part("srt.layers.attention.triton_backend:TritonAttnBackend")(
            self.frozen,
            skip_prefill=True,
            kv_indptr_buf=torch.zeros(ends, dtype=torch.int32, device=self.host.device),
        )
        self.computed_by_us(self.draft_backend, model)

        def forward_or_start(batch: Any, **settings: Any) -> Any:
            self.forwards += 1
            if self.seeded and self.forwards == 1:
                return ran(model.says(batch.spec_info.hidden_states))
            return forward(batch, **settings)

        self.frozen.set("forward", forward_or_start)
        values = self.worker_values(self.frozen)
        return self.proposing_worker(
            values
            | {
                "draft_model_runner": self.frozen,
                "draft_attn_backend": self.draft_backend,
                "kv_context": part("srt.speculative.frozen_kv_mtp_info:FrozenKVMTPContext")(
                    target_token_to_kv_pool=self.pool.kv, physical_layer_ids=borrowed
                ),
                "_recurrent_hidden_size": self.models[Role.DRAFT].config.hidden,
            }
        )

    @property
    def backends(self) -> Mapping[str, Any]:
        """The attention backend of the graphs."""
        return {"attention": self.draft_backend}

    def drafted(self, batch: ForwardBatch, rows: Tensor, loc: Tensor) -> Output:
        """Run a batch by replay; return what its requests are proposed."""
        branches = {
            name: values.repeat_interleave(SPECULATION.topk)
            for name, values in (
                ("req_pool_indices", rows),
                ("seq_lens", batch.seq_lens),
                ("orig_seq_lens", batch.seq_lens),
                ("seq_lens_cpu", batch.seq_lens_cpu),
            )
        }
        given = self.batch(
            batch,
            rows,
            loc,
            extend=False,
            runner=self.frozen,
            batch_size=batch.live_requests * SPECULATION.topk,
            seq_lens_sum=int(branches["seq_lens_cpu"].sum()),
            out_cache_loc=None,
            out_cache_loc_swa=None,
            attn_backend=self.draft_backend,
            spec_algorithm=self.algorithm,
            spec_info=self.speculative_input(batch),
            **branches,
        )
        return self.proposals(given, batch)

    def row_slots(self, batch: ForwardBatch) -> RowSlots:
        """Return the slots that every branch was told to read, by each forward alike."""
        held, rows = self.draft_backend, self.bucket * SPECULATION.topk
        return {
            Kind.FULL: listed(held.kv_indptr, held.cuda_graph_kv_indices, rows),
            Kind.SWA: listed(held.window_kv_indptr, held.cuda_graph_window_kv_indices, rows),
        }
