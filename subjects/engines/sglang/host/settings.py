"""What the stand-ins around an engine answer, as data: sizes of one rank, and what is off."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
"""The sizes of one rank, by the names they may have."""

IN_TORCH = {
    "srt.model_executor.forward_batch_info:clamp_position": (
        "srt.model_executor.forward_batch_info:_clamp_position_native"
    ),
    "srt.speculative.spec_utils:fast_topk": "srt.utils.common:fast_topk",
}
"""Functions that an engine compiles on a GPU, each with the one in torch that it has for others."""

PARALLEL_OFF = {
    **dict.fromkeys(("cp_strategy", "moe_dense_tp_size")),
    **dict.fromkeys(
        (
            "dcp_enabled",
            "disable_attn_tp_gather",
            "enable_dp_attention",
            "enable_dsa_prefill_context_parallel",
            "enable_kv_cache_sharding",
            "enable_nsa_prefill_context_parallel",
            "enable_prefill_context_parallel",
            "enable_prefill_cp",
        ),
        False,
    ),
}
"""What is off of working in parallel."""

SETTINGS_OFF = {
    **PARALLEL_OFF,
    **dict.fromkeys(
        (
            "_raw_input",
            "_resolved_overrides",
            "decode_attention_backend",
            "dllm_algorithm",
            "enable_lean_attention",
            "enable_lora",
            "flashinfer_allreduce_fusion_backend",
            "prefill_attention_backend",
            "return_hidden_states_mode",
            "speculative_algorithm",
            "speculative_draft_window_size",
            "speculative_eagle_topk",
            "speculative_moe_a2a_backend",
            "speculative_moe_runner_backend",
            "speculative_num_steps",
            "triton_attention_split_tile_size",
        )
    ),
    **dict.fromkeys(
        (
            "debug_cuda_graph",
            "disable_flashinfer_autotune",
            "disable_cuda_graph",
            "disable_radix_cache",
            "enable_cudagraph_gc",
            "enable_custom_logit_processor",
            "enable_deterministic_inference",
            "enable_encoder_swa_bounded_replay",
            "enable_memory_saver",
            "enable_mis",
            "enable_mixed_chunk",
            "enable_pdmux",
            "enable_profile_cuda_graph",
            "enable_return_hidden_states",
            "enable_torch_compile_debug_mode",
            "enable_two_batch_overlap",
            "enable_unified_cache_external_linker",
            "enable_watermark",
            "speculative_adaptive",
            "speculative_use_rejection_sampling",
            "strip_thinking_cache",
        ),
        False,
    ),
}
"""What is off of a server's settings."""

OFF: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "server_args": SETTINGS_OFF,
        "config": SETTINGS_OFF,
        "parallel": PARALLEL_OFF,
        "cuda_graph": {"max_context_size": None, "max_seq_len": None},
        "model_config": {
            "hc_hidden_size": None,
            "quantization": None,
            "requires_mm_token_modalities": False,
            "is_matryoshka": False,
            "is_mla_breakable_cuda_graph_supported": False,
            "model_is_mrope": False,
        },
        "model_runner": {
            **dict.fromkeys(
                (
                    "canary_manager",
                    "device_timer",
                    "hisparse_coordinator",
                    "hybrid_gdn_config",
                    "kimi_linear_config",
                    "linear_attn_model_spec",
                    "lora_manager",
                )
            ),
            "model_is_mrope": False,
            "use_ngram_embedding": False,
        },
        "worker": {"hot_token_id": None, "seed_dsa_topk_from_draft_extend": False},
        "batch": dict.fromkeys(
            (
                "extend_seq_lens",
                "extend_seq_lens_cpu",
                "kv_loc_cols",
                "kv_loc_plan",
                "mamba_track_indices",
                "max_seq_len_host",
                "mrope_positions",
                "out_cache_loc_dsv4",
                "out_cache_loc_virtual",
            )
        ),
        "spec_info": dict.fromkeys(("accept_length", "num_accepted_drafts", "num_correct_drafts")),
    }
)
"""By stand-in, the names that an engine may ask for and that are off: each value is what a
server's own default is. Any other name that is not declared is refused."""
