"""Tiny models with random weights whose geometry is that of models that shipped."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 256
WINDOW = 16


@dataclass(frozen=True)
class Model:
    """A model by its configuration. `draft` is that of a draft model for speculation, if any."""

    name: str
    says: str
    config: Mapping[str, Any]
    draft: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write the configuration into a new folder and return that."""
        return _written(self.config, folder / self.name)

    def write_draft(self, folder: Path) -> Path:
        """Write the draft model's configuration into a new folder and return that."""
        assert self.draft is not None
        return _written(self.draft, folder / f"{self.name}-draft")


def _written(config: Mapping[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True))
    return folder


_SIZES = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "sliding_window": WINDOW,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

_HYBRID = ["sliding_attention"] * 3 + ["full_attention"]

GEMMA4 = Model(
    name="gemma4",
    says="Gemma 4 text: three sliding layers, one full",
    config={
        **_SIZES,
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 2,
        "head_dim": 64,
        "global_head_dim": 64,
        "layer_types": _HYBRID,
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
        # Read by releases up to 0.5.12, and no part of the published configuration.
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 64,
        "swa_v_head_dim": 64,
        "v_head_dim": 64,
        "moe_intermediate_size": 256,
    },
)

MODELS = {model.name: model for model in (GEMMA4,)}
"""The models that can be served, by name."""
