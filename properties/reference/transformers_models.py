"""Our decoders as `transformers` writes them, with our weights, whole, in float64.

Its models are configured so that they say what ours say: one expert that gets all of a token
and whose SwiGLU is plain, RoPE that is not stretched, untied embeddings, no biases. Gemma 3's
four further norms, which our model lacks, are taken out. Masks, caches, attention, RoPE, norms
and MLPs are the library's own.
"""

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from paritybit.reference.config import PRESETS, Kind, ModelConfig
from paritybit.reference.model import Decoder, LayerWeights
from paritybit.reference.oracle import wide
from torch import Tensor
from torch.nn import Identity
from torch.overrides import TorchFunctionMode

LIBRARY, OLDEST = "transformers", (5, 23)
LAYER_TYPES = {Kind.FULL: "full_attention", Kind.SWA: "sliding_attention"}


def missing() -> str | None:
    """Say what keeps the library from being asked, None if it is here and new enough."""
    try:
        version = importlib.metadata.version(LIBRARY)
    except importlib.metadata.PackageNotFoundError:
        return f"{LIBRARY} is not installed"
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        return f"{LIBRARY} {version} is older than {'.'.join(map(str, OLDEST))}"
    return None


class InFloat64(TorchFunctionMode):
    """Makes float64 of every float32 that a model asks for: in norms, softmax and RoPE."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        args = tuple(_widened(one) for one in args)
        return func(*args, **{name: _widened(one) for name, one in (kwargs or {}).items()})


def _widened(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


@dataclass(frozen=True)
class Counterpart:
    """A decoder of ours and the library's model that is the same one.

    `names` are those of its configuration and model; `settings` returns what is said of our
    configuration beyond `common_settings`, `fit` brings what is its own in the library's.
    """

    config: ModelConfig
    names: tuple[str, str]
    settings: Callable[[ModelConfig], Mapping[str, Any]]
    fit: Callable[[Any, Decoder], None]


def library_model(counterpart: Counterpart, model: Decoder) -> Any:
    """Return the library's model with the weights of ours, to be called in `InFloat64`."""
    library = importlib.import_module(LIBRARY)
    config_name, model_name = counterpart.names
    config = counterpart.config
    settings = {**common_settings(config), **counterpart.settings(config)}
    with InFloat64():
        theirs = getattr(library, model_name)(getattr(library, config_name)(**settings))
    theirs = theirs.double().eval()
    theirs.model.embed_tokens.weight.copy_(wide(model.embedding))
    theirs.lm_head.weight.copy_(wide(model.head))
    theirs.model.norm.weight.copy_(wide(model.final_norm))
    for kind, layer, weights in zip(config.layers, theirs.model.layers, model.layers, strict=True):
        _fit_attention(layer, weights, config, kind)
    counterpart.fit(theirs, model)
    return theirs


def common_settings(config: ModelConfig) -> dict[str, Any]:
    """Return what all of the library's configurations call alike."""
    return {
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.full.kv_heads,
        "head_dim": config.full.head_dim,
        "max_position_embeddings": config.max_context,
        "rms_norm_eps": 1e-6,
        "sliding_window": config.window,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    }


def _fit_attention(layer: Any, weights: LayerWeights, config: ModelConfig, kind: Kind) -> None:
    """Copy a layer's projections, its sinks and the norm before them."""
    shape, attention = config.shape(kind), layer.self_attn
    widths = [config.heads * shape.head_dim, *[shape.kv_heads * shape.head_dim] * 2]
    for name, rows in zip("qkv", wide(weights.qkv).split(widths), strict=True):
        getattr(attention, f"{name}_proj").weight.copy_(rows)
    attention.o_proj.weight.copy_(wide(weights.output))
    layer.input_layernorm.weight.copy_(wide(weights.input_norm))
    if weights.sinks is not None:
        attention.sinks.copy_(wide(weights.sinks))


def _fit_mlp(mlp: Any, weights: LayerWeights) -> None:
    gate, up = wide(weights.gate_up).chunk(2)
    for name, weight in (("gate", gate), ("up", up), ("down", wide(weights.down))):
        getattr(mlp, f"{name}_proj").weight.copy_(weight)


def _fit_one_expert(theirs: Any, model: Decoder) -> None:
    """Give one expert all of the MLP: its rows lie interleaved, and it adds 1 to `up`."""
    for layer, weights in zip(theirs.model.layers, model.layers, strict=True):
        layer.post_attention_layernorm.weight.copy_(wide(weights.mlp_norm))
        gate, up = wide(weights.gate_up).chunk(2)
        experts = layer.mlp.experts
        experts.gate_up_proj[0, :, 0::2].copy_(gate.T)
        experts.gate_up_proj[0, :, 1::2].copy_(up.T)
        experts.gate_up_proj_bias[0, 1::2].fill_(-1)
        experts.down_proj[0].copy_(wide(weights.down).T)


def _fit_gemma(theirs: Any, model: Decoder) -> None:
    """Copy weights to norms that add 1 to theirs, and take out the norms that ours lacks."""
    embedding = theirs.model.embed_tokens
    embedding.weight.div_(embedding.embed_scale)
    for layer, weights in zip(theirs.model.layers, model.layers, strict=True):
        layer.pre_feedforward_layernorm.weight.copy_(wide(weights.mlp_norm))
        _fit_mlp(layer.mlp, weights)
        for norm in (layer.input_layernorm, layer.pre_feedforward_layernorm):
            norm.weight.sub_(1)
        layer.post_attention_layernorm = layer.post_feedforward_layernorm = Identity()
        layer.self_attn.q_norm = layer.self_attn.k_norm = Identity()
    theirs.model.norm.weight.sub_(1)


def _layer_types(config: ModelConfig) -> list[str]:
    return [LAYER_TYPES[kind] for kind in config.layers]


def _rope(theta: float, **further: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **further}


def _rope_by_kind(config: ModelConfig, **further: float) -> dict[str, Any]:
    return {name: _rope(config.rope_theta(kind), **further) for kind, name in LAYER_TYPES.items()}


COUNTERPARTS: dict[str, Counterpart] = {
    "gemma3": Counterpart(
        PRESETS["gemma3"],
        ("Gemma3TextConfig", "Gemma3ForCausalLM"),
        lambda config: {
            "layer_types": _layer_types(config),
            "rope_parameters": _rope_by_kind(config),
            "query_pre_attn_scalar": config.full.head_dim,
            "hidden_activation": "gelu_pytorch_tanh",
        },
        _fit_gemma,
    ),
    "gpt_oss": Counterpart(
        PRESETS["gpt_oss"],
        ("GptOssConfig", "GptOssForCausalLM"),
        lambda config: {
            "layer_types": _layer_types(config),
            "rope_parameters": _rope(config.full_rope_theta),
            "num_local_experts": 1,
            "num_experts_per_tok": 1,
            "experts_implementation": "eager",
            "swiglu_alpha": 1.0,
            "swiglu_limit": float("inf"),
            "attention_bias": False,
        },
        _fit_one_expert,
    ),
}
"""By name: two that alternate full and sliding layers."""
