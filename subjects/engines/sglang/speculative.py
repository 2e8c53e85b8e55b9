"""The engine's speculative runners, up to their attention metadata: their real populate.

They are built without being captured, and stopped where they hand the populated rows to
the attention backend, whose lists would follow from those rows.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from subjects.engines.sglang.host import StubConfig
from subjects.engines.sglang.loading import named
from subjects.engines.sglang.prefill import UncapturedRunner
from subjects.engines.sglang.runner import tensors_of

TOPK, STEPS, DRAFT_TOKENS = 2, 3, 4


class HandedOver(Exception):  # noqa: N818 -- it carries what was handed over, and is no error
    """A runner has handed `rows` and `lengths` of its populated rows to its backend."""

    def __init__(self, rows: Tensor, lengths: Tensor) -> None:
        super().__init__("handed over")
        self.rows = rows
        self.lengths = lengths


class StoppingBackend:
    """An attention backend that stops its runner with what it is handed."""

    def __init__(self) -> None:
        self.attn_backends = [self]

    def init_cuda_graph_state(self, *sizes: Any) -> None:
        """Need nothing."""

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Return the length of a padded row."""
        return 1

    def init_forward_metadata_replay_cuda_graph(self, *handed: Any, **by_name: Any) -> None:
        """Stop the runner."""
        values = by_name if "req_pool_indices" in by_name else vars(handed[0])
        raise HandedOver(values["req_pool_indices"], values["seq_lens"])

    init_forward_metadata_out_graph = init_forward_metadata_replay_cuda_graph


class SpeculativeRunner(UncapturedRunner):
    """A runner of a draft model. Per request it has so many rows, tokens and write locations."""

    rows = 1
    tokens = TOPK
    locations = TOPK * STEPS

    def prepare(self) -> None:
        """Speculate, and let the backend stop what it is asked."""
        self.stopping = StoppingBackend()
        for name, value in {
            "speculative_num_steps": STEPS,
            "speculative_eagle_topk": TOPK,
            "speculative_num_draft_tokens": DRAFT_TOKENS,
        }.items():
            self.host.set(name, value)
        self.model_runner.set("attn_backend", self.stopping)
        self.model_runner.set("draft_attn_backend", self.stopping)

    def made_from(self) -> Any:
        """Return a stand-in for the worker that the runner serves."""
        algorithm = self.host.engine.part("srt.speculative.spec_info:SpeculativeAlgorithm")
        values = {
            "model_runner": self.model_runner,
            "draft_runner": self.model_runner,
            "draft_model_runner": self.model_runner,
            "draft_attn_backend": self.stopping,
            "draft_extend_attn_backend": self.stopping,
            "target_worker": SimpleNamespace(model_runner=self.model_runner),
            "speculative_algorithm": algorithm.NONE,
            "model_config": self.model_runner.model_config,
            "_recurrent_hidden_size": self.model_runner.model_config.hidden_size,
            "_init_frozen_kv_metadata_replay_cuda_graph": (
                self.stopping.init_forward_metadata_replay_cuda_graph
            ),
        }
        return StubConfig(values, self.host.asked, "worker")

    def statics(self) -> Mapping[str, Tensor]:
        """Return the runner's static input buffers, by name."""
        return tensors_of(self.runner.buffers)

    def hand_over(self, batch: Any) -> HandedOver:
        """Return what the runner hands to its backend for a batch."""
        execute = getattr(self.runner, "execute", None) or self.runner.replay
        first = torch.arange(batch.batch_size, device=batch.input_ids.device)
        try:
            named(execute, select_index=first)(batch)
        except HandedOver as handed:
            return handed
        raise RuntimeError("the runner replayed without asking its attention backend")


class EagleDraftRunner(SpeculativeRunner):
    """The runner of several forwards of a draft model."""

    name = "eagle_draft"
    places = ("srt.speculative.eagle_draft_cuda_graph_runner:EAGLEDraftCudaGraphRunner",)


class EagleDraftExtendRunner(SpeculativeRunner):
    """The runner of a draft model that catches up."""

    name = "eagle_draft_extend"
    places = (
        "srt.speculative.eagle_draft_extend_cuda_graph_runner:EAGLEDraftExtendCudaGraphRunner",
    )
    tokens = DRAFT_TOKENS
    locations = DRAFT_TOKENS


class FrozenKvMtpRunner(SpeculativeRunner):
    """The runner of a draft model that reads the target's KV."""

    name = "frozen_kv_mtp"
    places = ("srt.speculative.frozen_kv_mtp_cuda_graph_runner:FrozenKVMTPCudaGraphRunner",)
    rows = TOPK
    locations = TOPK
