"""What an engine's code finds around it: settings, one rank, and a runner of models.

Values are declared here; whatever else the engine asks a setting for is off (None), and
noted, so that a report can say what was assumed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from reference.config import Kind
from reference.model import Model
from subjects.engines.sglang.loading import Engine, PartMissingError


class StubConfig:
    """A bag of declared values, in which any other name is None. `asked` collects those names."""

    def __init__(self, values: dict[str, Any], asked: set[str], label: str) -> None:
        self.__dict__.update(values)
        self._asked = asked
        self._label = label

    def set(self, name: str, value: Any) -> None:
        """Declare one more value."""
        self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._asked.add(f"{self._label}.{name}")


class StubGroups(StubConfig):
    """A bag that is its own subgroups."""

    def __getattr__(self, name: str) -> Any:
        return self if name in SUBGROUPS else super().__getattr__(name)

    @contextmanager
    def override(self, **values: Any) -> Iterator["StubGroups"]:
        """Hold other values within a scope."""
        before = dict(self.__dict__)
        self.__dict__.update(values)
        yield self
        self.__dict__.clear()
        self.__dict__.update(before)


SUBGROUPS = frozenset(
    {
        "comm",
        "deterministic",
        "dllm",
        "features",
        "graph",
        "kernel",
        "mamba",
        "moe",
        "offload",
        "overlap",
    }
)
"""What an engine's resolved configuration is divided into."""

ANSWERS: dict[str, dict[str, Any]] = {
    "srt.configs.hybrid_arch": dict.fromkeys(
        ("mambaish_config", "mamba2_config", "hybrid_gdn_config", "kimi_linear_config"),
        lambda *arguments: None,
    ),
}
"""What functions of stubbed modules answer: the model is a plain decoder."""


class OneRank:
    """A process group of one process."""

    world_size = 1
    rank_in_group = 0
    rank = 0
    local_rank = 0
    ca_comm = None
    is_first_rank = True
    is_last_rank = True

    def __init__(self, device: str) -> None:
        self.device = device
        self.ranks = [0]

    def barrier(self) -> None:
        """Wait for nobody."""

    @contextmanager
    def graph_capture(self, context: Any = None, stream: Any = None) -> Iterator[Any]:
        """Give the stream that a capture runs on."""
        if self.device == "cpu":
            yield context or SimpleNamespace(stream=None)
            return
        context = context or SimpleNamespace(stream=stream or torch.cuda.Stream())
        context.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(context.stream):
            yield context
        torch.cuda.current_stream().wait_stream(context.stream)


GROUPS = (
    "_WORLD",
    "_TP",
    "_PP",
    "_ATTN_TP",
    "_ATTN_CP",
    "_DCP",
    "_MOE_EP",
    "_MOE_DP",
    "_MOE_TP",
)
"""The names that a process group may have in the engine."""

ATTENTION = {
    "_ATTN_TP_RANK": 0,
    "_ATTN_TP_SIZE": 1,
    "_ATTN_DP_RANK": 0,
    "_ATTN_DP_SIZE": 1,
    "_LOCAL_ATTN_DP_SIZE": 1,
    "_LOCAL_ATTN_DP_RANK": 0,
    "_ENABLE_DP_ATTENTION_FLAG": False,
}
"""Attention's own parallel sizes, by the names they may have."""

SIZES = {
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "ep_size": 1,
    "attn_cp_size": 1,
    "attn_tp_size": 1,
    "attn_dp_size": 1,
    "attn_dcp_size": 1,
    "moe_dp_size": 1,
    "dcp_size": 1,
    "dcp_rank": 0,
    "pp_rank": 0,
    "tp_rank": 0,
    "attn_tp_rank": 0,
    "attn_cp_rank": 0,
    "attn_dp_rank": 0,
    "attn_dcp_rank": 0,
    "moe_ep_size": 1,
    "moe_ep_rank": 0,
    "attn_dp_enabled": False,
    "num_dp_ranks": 1,
}


def server_arguments(
    buckets: tuple[int, ...], tokens: tuple[int, ...], page_size: int, asked: set[str]
) -> dict[str, Any]:
    """Return the settings that are not off; `asked` collects the others that are asked for."""
    phases = {
        name: StubConfig(
            {"bs": list(sizes), "backend": "full", "max_bs": max(sizes)}, asked, "cuda_graph"
        )
        for name, sizes in (("decode", buckets), ("prefill", tokens))
    }
    return SIZES | {
        "cuda_graph_bs": list(buckets),
        "cuda_graph_bs_decode": list(buckets),
        "cuda_graph_max_bs": max(buckets),
        "torch_compile_max_bs": max(buckets),
        "piecewise_cuda_graph_tokens": list(tokens),
        "piecewise_cuda_graph_max_tokens": max(tokens),
        "piecewise_cuda_graph_compiler": "eager",
        "cuda_graph_config": SimpleNamespace(**phases),
        "attention_backend": "triton",
        "chunked_prefill_size": max(tokens),
        "page_size": page_size,
        "triton_attention_num_kv_splits": 2,
        "moe_a2a_backend": "none",
        "deepep_mode": "auto",
        "speculative_num_draft_tokens": 0,
        "disable_cuda_graph_padding": False,
        "enable_mamba_extra_buffer": lambda: True,
        "enable_torch_compile": False,
        "kv_canary": "none",
    }


class Host:
    """The stand-ins for one engine in this process, on one device."""

    def __init__(
        self, engine: Engine, settings: dict[str, Any], device: str, asked: set[str]
    ) -> None:
        self.engine = engine
        self.device = device
        self.asked = asked
        self.encoder_decoder = False
        self.arguments = StubConfig(settings, self.asked, "server_args")
        self.rank = OneRank(device)
        self.bag = StubGroups(settings, asked, "config")
        self._publish(settings)

    def _publish(self, settings: dict[str, Any]) -> None:
        """Let the engine's own accessors find the settings and the groups."""
        arguments = self.arguments
        self.engine.fill(
            "srt.server_args",
            {
                "get_global_server_args": lambda: arguments,
                "_global_server_args": arguments,
            },
        )
        for module, answers in ANSWERS.items():
            self.engine.fill(module, answers)
        self.engine.fill("srt.distributed.parallel_state", dict.fromkeys(GROUPS, self.rank))
        self.engine.fill("srt.layers.dp_attention", ATTENTION)
        try:
            context = self.engine.module("srt.runtime_context")
        except PartMissingError:
            return
        if hasattr(context._CONTEXT, "_server_args"):
            context._CONTEXT._server_args = arguments
        if hasattr(context._CONTEXT, "config_bag"):
            bag = self.bag
            type(context._CONTEXT).config_bag = lambda context, name: bag
        groups = {f"{name.lower().strip('_')}_group": self.rank for name in GROUPS}
        parallel = StubConfig(SIZES | groups, self.asked, "parallel")
        context._CONTEXT.parallel = parallel
        if hasattr(context, "_PARALLEL"):
            vars(context)["_PARALLEL"] = parallel

    def set(self, name: str, value: Any) -> None:
        """Change one setting, wherever the engine looks for it."""
        self.arguments.set(name, value)
        self.bag.set(name, value)

    def model_config(self, model: Model) -> StubConfig:
        """Return what the engine may ask of a model's configuration."""
        config = model.config
        values = {
            "is_encoder_decoder": self.encoder_decoder,
            "hidden_size": config.hidden,
            "spec_hidden_size": config.hidden,
            "vocab_size": config.vocab,
            "context_len": config.max_context,
            "dtype": model.dtype,
            "num_attention_heads": config.heads,
            "get_num_kv_heads": lambda *sizes: config.full.kv_heads,
            "get_max_num_attention_heads": lambda: config.heads,
            "head_dim": config.full.head_dim,
            "v_head_dim": config.full.head_dim,
            "swa_v_head_dim": config.swa.head_dim,
            "attention_arch": "MHA",
            "num_hidden_layers": len(config.layers),
            "hf_config": SimpleNamespace(architectures=["Decoder"], model_type="decoder"),
        }
        return StubConfig(values, self.asked, "model_config")

    def model_runner(self, model: Model, values: dict[str, Any]) -> StubConfig:
        """Return what the engine's runners take for the model runner they serve."""
        logits: dict[int, torch.Tensor] = {}

        def logits_buffer(width: int, *, rows: int, **named: Any) -> torch.Tensor:
            if rows not in logits:
                logits[rows] = torch.zeros((rows, width), device=self.device)
            return logits[rows]

        declared = {
            "device": self.device,
            "gpu_id": 0,
            "server_args": self.arguments,
            "model_config": self.model_config(model),
            "dcp_size": 1,
            "dcp_rank": 0,
            "page_size": self.arguments.page_size,
            "dtype": model.dtype,
            "kv_cache_dtype": model.dtype,
            "tp_group": self.rank,
            "pp_group": self.rank,
            "sliding_window_size": model.config.window,
            "is_hybrid_swa": bool(model.config.layers_of(Kind.SWA)),
            "is_draft_worker": False,
            "spec_algorithm": self.no_speculation(),
            "decode_num_tokens_per_bs": lambda **named: 1,
            "decode_num_tokens_per_req": lambda **named: 1,
            "get_pp_proxy_topk_size": lambda: None,
            "get_pp_proxy_residual_num_blocks": lambda: None,
            "get_pp_proxy_dspark_hidden_size": lambda: None,
            "get_aux_hidden_states_width": lambda: None,
            "attn_tp_sequence_sharded": lambda tokens: False,
            "graph_shared_output": SimpleNamespace(get_logits_buffer=logits_buffer, max_rows=0),
            "ngram_embedding_manager": SimpleNamespace(enabled=False, table=None),
            "is_multimodal": True,
            "is_generation": True,
            "attention_layers": [],
            "mha_companion_layers": [],
            "prepare_dummy_forward_batch": lambda batch, *rest, **named: batch,
            "capture_head_hooks": [],
            "capture_tail_hooks": [],
        }
        return StubConfig(declared | values, self.asked, "model_runner")

    def forget_shared_buffers(self) -> None:
        """Let what is built next share no static buffer with what was built before."""
        try:
            shared = self.engine.part("srt.model_executor.input_buffers:_forward_input_buffer_pool")
        except PartMissingError:
            return
        shared.clear()

    def no_speculation(self) -> Any:
        """Return the engine's own word for no speculation."""
        return self.engine.part("srt.speculative.spec_info:SpeculativeAlgorithm").NONE
