"""What the engine's configuration is told, as data: one rank, no extras, its graphs for decodes.

Every other name that the engine asks for is refused and noted.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from reference.config import Kind, ModelConfig
from subjects.engines.shared.bags import Bag
from subjects.engines.shared.loading import Engine

BLOCK = 16
"""Slots of a block: the smallest that the engine's attention backend takes."""

GROUPS = (Kind.FULL, Kind.SWA)
"""The engine's groups of layers, each with a block table of its own, in their order."""

TOKENS = 64
"""The most tokens of a forward, at least a request's longest."""


def all_of(value: Any, names: str) -> dict[str, Any]:
    """Return one value for every one of some names, which stand in one text."""
    return dict.fromkeys(names.split(), value)


OFF: Mapping[str, Mapping[str, Any]] = {
    "model": {
        **all_of(False, "enable_prompt_embeds is_attention_free is_encoder_decoder is_hybrid"),
        **all_of(False, "is_moe is_multimodal_model supports_multimodal_inputs uses_mrope"),
        "architectures": (),
        "hf_config": SimpleNamespace(model_type="decoder"),
        "logprobs_mode": "raw_logprobs",
        "rswa_window": None,
        "use_fp64_gumbel": False,
        "uses_xdrope_dim": 0,
    },
    "cache": all_of(False, "kv_sharing_fast_prefill use_kda_recoverssm use_replayssm"),
    "compilation": {
        # The capture sizes are whole numbers of requests already.
        "adjust_cudagraph_sizes_for_spec_decode": lambda *rest: None,
        **all_of(False, "fast_moe_cold_start ir_enable_torch_wrap"),
    },
    "parallel": {
        **all_of(1, "cp_kv_cache_interleave_size data_parallel_size pipeline_parallel_size"),
        **all_of(1, "decode_context_parallel_size prefill_context_parallel_size"),
        "tensor_parallel_size": 1,
        "data_parallel_rank": 0,
        **all_of(False, "use_sequence_parallel_moe use_ubatching"),
    },
    "scheduler": {"async_scheduling": False},
    "engine": {
        **all_of(None, "kv_transfer_config load_config lora_config mamba_config watermark_config"),
        **all_of(False, "is_encoder_only use_cumem_cudagraph_pool"),
        "attention_config": SimpleNamespace(hisparse_config=None),
        "aux_output_config": SimpleNamespace(enabled=False),
        "kernel_config": SimpleNamespace(ir_op_priority=SimpleNamespace(set_priority=nullcontext)),
        "observability_config": SimpleNamespace(cudagraph_metrics=False),
        "offload_config": SimpleNamespace(offload_backend="none", uva=None, prefetch=None),
    },
    "speculative": {
        **all_of(False, "enable_adaptive_verification parallel_drafting"),
        "use_local_argmax_reduction": False,
        "draft_sample_method": "greedy",
        **all_of(lambda: False, "use_dspark use_multi_module_mtp use_ngram"),
        "rejection_sample_method": "strict",
        "uses_dynamic_speculative_decoding": lambda: False,
    },
}
"""What is off, or of one rank, by the part of the configuration that is asked for it."""


def graph_mode(engine: Engine, sizes: Sequence[int], *, pieces: bool) -> Any:
    """Return what the engine is told to replay: decodes, all in pieces, nothing without sizes."""
    modes = engine.part("config.compilation:CUDAGraphMode")
    if not sizes:
        return modes.NONE
    return modes.PIECEWISE if pieces else modes.FULL_DECODE_ONLY


def sizes_of(config: ModelConfig) -> dict[str, Any]:
    """Return what the engine asks of a model's sizes; a draft model has the target's."""
    return {
        "max_model_len": config.max_context,
        "get_vocab_size": lambda: config.vocab,
        "get_hidden_size": lambda: config.hidden,
        "get_inputs_embeds_size": lambda: config.hidden,
        "get_num_attention_heads": lambda parallel: config.heads,
        "get_num_kv_heads": lambda parallel: config.full.kv_heads,
        "get_head_size": lambda: config.full.head_dim,
    }


def configuration(
    engine: Engine,
    config: ModelConfig,
    sizes: Sequence[int],
    rows: int,
    drafts: int,
    asked: set[str],
    *,
    pieces: bool,
) -> Bag:
    """Return the engine's configuration for a model, graphs of so many tokens, requests at most.

    `drafts` tokens of every request are verified at once, none if it is 0; `asked` collects the
    names that are asked for in vain.
    """
    modes = engine.module("config.compilation")
    decoding = graph_mode(engine, sizes, pieces=pieces)

    def bag(label: str, **values: Any) -> Bag:
        return Bag({**OFF.get(label, {}), **values}, asked, label)

    query = max(drafts, 1)
    parts = {
        "model_config": bag(
            "model", dtype=torch.float32, runner_type="generate", **sizes_of(config)
        ),
        "cache_config": bag(
            "cache",
            cache_dtype="auto",
            get_resolved_kv_cache_layout=lambda: (
                engine.part("v1.kv_cache_layout:KVCacheLayout").LBNHC
            ),
        ),
        "compilation_config": bag(
            "compilation",
            static_forward_context={},
            mode=modes.CompilationMode.NONE,
            cudagraph_mode=decoding,
            resolve_cudagraph_mode_and_sizes=lambda *rest, **named: decoding,
            cudagraph_capture_sizes=list(sizes),
            max_cudagraph_capture_size=max(sizes, default=0),
        ),
        "parallel_config": bag("parallel"),
        "scheduler_config": bag("scheduler", max_num_seqs=rows, max_num_batched_tokens=TOKENS),
    }
    drafter = {"method": "ours", "draft_model_config": parts["model_config"]}
    speculative = bag("speculative", num_speculative_tokens=query - 1, **drafter)
    return bag(
        "engine",
        **parts,
        speculative_config=speculative if drafts else None,
        max_concurrent_batches=1,
        num_speculative_tokens=query - 1,
        num_prefill_lookahead_tokens=0,
    )
