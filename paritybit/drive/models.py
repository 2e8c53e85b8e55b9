"""Tiny models with random weights and the geometry of published models."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 256
WINDOW = 16

IMAGE = 2
"""The token in place of each part of an image."""

PATTERN = {"*": "full_attention", "M": "linear_attention"}
"""The kinds of layers in a pattern."""


@dataclass(frozen=True)
class Model:
    """The configurations of a model, and of its draft model, if any."""

    name: str
    config: Mapping[str, Any]
    draft: Mapping[str, Any] | None = None

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of the layers that have KV or states."""
        config = self.config.get("text_config", self.config)
        if (pattern := config.get("hybrid_override_pattern")) is not None:
            return [PATTERN[one] for one in pattern if one in PATTERN]
        plain = ["full_attention"] * config["num_hidden_layers"]
        found: Sequence[str] = config.get("layer_types", plain)
        return found

    def write(self, folder: Path) -> Path:
        """Write the configuration to a new folder, and return the folder."""
        return written(self.config, folder / self.name)


def written(config: Mapping[str, Any], folder: Path) -> Path:
    """Write a configuration to a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True))
    return folder


_SIZES = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

_SLIDING = {**_SIZES, "sliding_window": WINDOW}

_GEMMA4 = {
    **_SLIDING,
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "tie_word_embeddings": True,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_global_key_value_heads": 2,
    "head_dim": 64,
    "global_head_dim": 64,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCABULARY,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "attention_k_eq_v": False,
    "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    # Releases up to 0.5.12 read these. They are not part of the published configuration.
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 64,
    "swa_v_head_dim": 64,
    "v_head_dim": 64,
    "moe_intermediate_size": 256,
}

GEMMA4 = Model("gemma4", _GEMMA4)

GPT_OSS = Model(
    name="gpt_oss",
    config={
        **_SLIDING,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "head_dim": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "attention_bias": True,
        "hidden_act": "silu",
        "swiglu_limit": 7.0,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150_000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": _SIZES["max_position_embeddings"] // 32,
            "truncate": False,
        },
    },
    draft={
        **_SLIDING,
        "architectures": ["LlamaForCausalLMEagle"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "head_dim": 64,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
)

QWEN2_VL = Model(
    name="qwen2_vl",
    config={
        **_SIZES,
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "num_hidden_layers": 2,
        "hidden_act": "silu",
        "rope_theta": 10_000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "image_token_id": IMAGE,
        "vision_config": {
            "depth": 1,
            "embed_dim": 32,
            "hidden_size": _SIZES["hidden_size"],
            "num_heads": 2,
            "mlp_ratio": 2,
            "in_chans": 3,
            "patch_size": 14,
        },
    },
)

LFM2 = Model(
    name="lfm2",
    config={
        **_SIZES,
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "block_dim": 128,
        "conv_dim": 128,
        "block_ff_dim": 128,
        "block_multiple_of": 1,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": 4,
        "norm_eps": 1e-5,
        "conv_L_cache": 3,
        "conv_bias": False,
        "layer_types": ["full_attention", "conv"] * 2,
        "rope_theta": 10_000.0,
    },
)

DEEPSEEK_V2 = Model(
    name="deepseek_v2",
    config={
        **_SIZES,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "q_lora_rank": 64,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 64,
        "v_head_dim": 32,
        "first_k_dense_replace": 3,  # No layer has experts.
        "moe_layer_freq": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "hidden_act": "silu",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 40.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": _SIZES["max_position_embeddings"] // 32,
        },
    },
    draft=GPT_OSS.draft,
)
"""A model with compressed KV: a latent vector and a rotated key for each token, for all heads."""

DEEPSEEK_V32 = Model(
    name="deepseek_v32",
    config={
        **DEEPSEEK_V2.config,
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "index_head_dim": 128,
        "index_n_heads": 2,
        "index_topk": 128,  # The least that vLLM has.
    },
)
"""Such a model that reads few keys of a prompt, which an indexer chooses by keys of its own."""

NEMOTRON_H = Model(
    name="nemotron_h",
    config={
        **_SIZES,
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M*M-",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "layer_norm_epsilon": 1e-5,
        "ssm_state_size": 16,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "mamba_n_groups": 2,
        "conv_kernel": 4,
        "chunk_size": 16,
    },
)
"""A model with states of Mamba2."""

QWEN3_NEXT = Model(
    name="qwen3_next",
    config={
        **_SIZES,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "hidden_act": "silu",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0, 1, 2, 3],
        "num_experts": 4,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "num_experts_per_tok": 2,
    },
)
"""A model with states of gated delta nets."""

QWEN3_5 = Model(
    name="qwen3_5",
    config={
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": False,
        "text_config": {
            **QWEN3_NEXT.config,
            "model_type": "qwen3_5_text",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [3, 3, 2],
                "mrope_interleaved": True,
            },
        },
        "vision_config": {
            "depth": 1,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 32,
            "out_hidden_size": _SIZES["hidden_size"],
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [],
        },
    },
)
"""Such a model whose ranks can share contexts, and which has images."""

LLAMA4 = Model(
    name="llama4",
    config={
        **_SIZES,
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "hidden_act": "silu",
        "intermediate_size": 64,
        "intermediate_size_mlp": 128,
        "layer_types": [*["chunked_attention"] * 3, "full_attention"],
        "no_rope_layers": [1, 1, 1, 0],
        "attention_chunk_size": 2 * WINDOW,
        "interleave_moe_layer_step": 5,  # No layer has experts.
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "use_qk_norm": False,  # sglang would round queries to 16 bits.
        "attn_temperature_tuning": True,
        "floor_scale": WINDOW,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
)
"""A model in which the queries of some layers see only the keys of their chunk."""

LLAMA4_IN_PARTS: Mapping[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "tie_word_embeddings": False,
    "text_config": LLAMA4.config,
}
"""The same, without the part for images that it may have."""

MODELS = {
    model.name: model
    for model in (
        *(GEMMA4, GPT_OSS, QWEN2_VL, LFM2, DEEPSEEK_V2, DEEPSEEK_V32, NEMOTRON_H, QWEN3_NEXT),
        *(QWEN3_5, LLAMA4),
    )
}
RECURRENT = frozenset({LFM2.name, NEMOTRON_H.name, QWEN3_NEXT.name, QWEN3_5.name})
"""The models with states."""
