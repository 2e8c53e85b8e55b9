"""What an engine's code finds around it: settings, one rank, and a runner of models.

Every value is declared, here or, where it is off, in `settings`. What else the engine asks for
is refused and noted, so that a report can say what was left at the engine's own default.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from paritybit.reference.config import Kind
from paritybit.reference.model import Model
from paritybit.subjects.engines.sglang.host.loading import AttentionArch
from paritybit.subjects.engines.sglang.host.settings import (
    ATTENTION,
    GROUPS,
    IN_TORCH,
    OFF,
    SIZES,
    SUBGROUPS,
)
from paritybit.subjects.engines.shared.bags import Bag
from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.engines.shared.missing import PartMissingError
from paritybit.subjects.engines.shared.ranks import OneRank


class StubConfig(Bag):
    """A bag of declared values, and of those that are off for bags of its label."""

    def __init__(self, values: dict[str, Any], asked: set[str], label: str) -> None:
        super().__init__({**OFF.get(label, {}), **values}, asked, label)


class Switch:
    """A setting that some releases read and others call. Within `off` it is off."""

    def __init__(self, *, on: bool) -> None:
        self._on = on

    def __bool__(self) -> bool:
        return self._on

    def __call__(self) -> bool:
        """Return whether it is on."""
        return self._on

    @contextmanager
    def off(self) -> Iterator[None]:
        """Be off for a while."""
        before, self._on = self._on, False
        try:
            yield
        finally:
            self._on = before


TRACKS_STATES = Switch(on=True)
"""Whether recurrent states are tracked: runners have static inputs for that, and the engine's
scheduler is to know nothing of it, for states are in a table of the world's."""


class StubGroups(StubConfig):
    """A bag that is its own subgroups."""

    def __getattr__(self, name: str) -> Any:
        return self if name in SUBGROUPS else super().__getattr__(name)

    @contextmanager
    def override(self, **values: Any) -> Iterator["StubGroups"]:
        """Hold other values within a scope."""
        before = dict(self.__dict__)
        self.__dict__.update(values)
        try:
            yield self
        finally:
            self.__dict__.clear()
            self.__dict__.update(before)


def server_arguments(
    buckets: tuple[int, ...], tokens: tuple[int, ...], page_size: int, asked: set[str]
) -> dict[str, Any]:
    """Return the settings that are not off; `asked` collects the others that are asked for."""
    phases: dict[str, Any] = {
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
        "cuda_graph_config": StubConfig(phases, asked, "cuda_graph_config"),
        "attention_backend": "triton",
        "chunked_prefill_size": max(tokens),
        "page_size": page_size,
        "triton_attention_num_kv_splits": 2,
        "moe_a2a_backend": "none",
        "moe_runner_backend": "auto",
        "deepep_mode": "auto",
        "speculative_num_draft_tokens": 0,
        "disable_cuda_graph_padding": False,
        "disaggregation_mode": "null",
        "disaggregation_decode_retraction_backup": "none",
        "retraction_policy": "length",
        "mamba_radix_cache_strategy": "no_buffer",
        "enable_mamba_extra_buffer": TRACKS_STATES,
        "enable_mamba_extra_buffer_lazy": Switch(on=False),
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
        self.rank = OneRank(device)
        self.arguments = self._stub("server_args", settings | {"device": device})
        self.bag = StubGroups(settings | {"device": device}, asked, "config")
        groups = {f"{name.lower().strip('_')}_group": self.rank for name in GROUPS}
        self.parallel = self._stub("parallel", SIZES | groups)
        self._publish()
        if device != "cpu":
            self._without_compiled()

    def _stub(self, label: str, values: dict[str, Any]) -> StubConfig:
        """Return a bag of declared values."""
        return StubConfig(values, self.asked, label)

    def _publish(self) -> None:
        """Let the engine's own accessors find the settings and the groups.

        Modules of the engine keep the accessor that they found when they were imported, so that
        it must find what was published last.
        """
        arguments, bag = self.arguments, self.bag
        self.engine.fill(
            "srt.server_args",
            {
                "get_global_server_args": lambda: (
                    self.engine.module("srt.server_args")._global_server_args
                ),
                "_global_server_args": arguments,
            },
        )
        self.engine.fill("srt.distributed.parallel_state", dict.fromkeys(GROUPS, self.rank))
        self.engine.fill("srt.layers.dp_attention", ATTENTION)
        try:
            context = self.engine.module("srt.runtime_context")
        except PartMissingError:
            return
        if hasattr(context._CONTEXT, "_server_args"):
            context._CONTEXT._server_args = arguments
        if hasattr(context._CONTEXT, "config_bag"):
            type(context._CONTEXT).config_bag = lambda context, name: bag
        context._CONTEXT.parallel = self.parallel
        if hasattr(context, "_PARALLEL"):
            vars(context)["_PARALLEL"] = self.parallel

    def _without_compiled(self) -> None:
        """Let the engine use what it has in torch for what it compiles on a GPU."""
        for module, functions in IN_TORCH.items():
            for name, in_torch in functions.items():
                with suppress(PartMissingError):
                    self.engine.fill(module, {name: self.engine.part(in_torch)})
        pools = self.engine.module("srt.mem_cache.memory_pool")
        if hasattr(pools, "can_use_store_cache"):  # It would try to compile one, and warn.
            vars(pools)["can_use_store_cache"] = lambda *sizes: False

    def set(self, name: str, value: Any) -> None:
        """Change one setting, wherever the engine looks for it."""
        self.arguments.set(name, value)
        self.bag.set(name, value)

    def model_config(self, model: Model) -> StubConfig:
        """Return what the engine may ask of a model's configuration."""
        config = model.config
        hf_config = self._stub("hf_config", {"architectures": ["Decoder"], "model_type": "decoder"})
        values = {
            "is_encoder_decoder": self.encoder_decoder,
            "is_multimodal": True,
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
            "attention_arch": AttentionArch.MHA,
            "num_hidden_layers": len(config.layers),
            "hf_config": hf_config,
            "hf_text_config": hf_config,
        }
        return self._stub("model_config", values)

    def model_runner(self, model: Model, values: dict[str, Any]) -> StubConfig:
        """Return what the engine's runners take for the model runner they serve."""
        logits: dict[int, torch.Tensor] = {}

        def logits_buffer(width: int, *, rows: int, **named: Any) -> torch.Tensor:
            if rows not in logits:
                logits[rows] = torch.zeros((rows, width), device=self.device)
            return logits[rows]

        shared = {"get_logits_buffer": logits_buffer, "max_rows": 0}
        ngrams = {"enabled": False, "table": None}
        declared = SIZES | {
            "device": self.device,
            "gpu_id": 0,
            "server_args": self.arguments,
            "ps": self.parallel,
            "model_config": self.model_config(model),
            "page_size": self.arguments.page_size,
            "dtype": model.dtype,
            "kv_cache_dtype": model.dtype,
            "tp_group": self.rank,
            "pp_group": self.rank,
            "sliding_window_size": model.config.window,
            "is_hybrid_swa": bool(model.config.layers_of(Kind.SWA)),
            "is_draft_worker": False,
            "prefill_attention_backend_str": self.arguments.attention_backend,
            "spec_algorithm": self.no_speculation(),
            "decode_num_tokens_per_bs": lambda **named: 1,
            "decode_num_tokens_per_req": lambda **named: 1,
            "_pp_kwargs": lambda proxies: {},
            "get_pp_proxy_topk_size": lambda: None,
            "get_pp_proxy_residual_num_blocks": lambda: None,
            "get_pp_proxy_dspark_hidden_size": lambda: None,
            "get_aux_hidden_states_width": lambda: None,
            "attn_tp_sequence_sharded": lambda tokens: False,
            "graph_shared_output": self._stub("graph_shared_output", shared),
            "ngram_embedding_manager": self._stub("ngram_embedding_manager", ngrams),
            "is_multimodal": True,
            "is_generation": True,
            "attention_layers": [],
            "dsa_indexers": [],
            "mha_companion_layers": [],
            "moe_fusions": [],
            "moe_layers": [],
            "prepare_dummy_forward_batch": lambda batch, *rest, **named: batch,
            "capture_head_hooks": [],
            "capture_tail_hooks": [],
        }
        return self._stub("model_runner", declared | values)

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
