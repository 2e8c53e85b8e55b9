"""Random weights of tiny adapters, and other weights of a model."""

import torch
from torch import Tensor

from paritybit.drive.models import Model
from paritybit.drive.operating.adapters import RANK, config_of
from paritybit.drive.script import MOST_ADAPTERS


def adapter_weights(model: Model, number: int, version: int = 0) -> dict[str, Tensor]:
    """Return the weights of a version of an adapter by name."""
    generator = torch.Generator().manual_seed(number + MOST_ADAPTERS * version)
    hidden, heads = model.config["hidden_size"], model.config["num_attention_heads"]
    width = model.config.get("head_dim", hidden // heads)
    kv_heads = model.config["num_key_value_heads"]
    shapes = {
        "q_proj": (hidden, heads * width),
        "k_proj": (hidden, kv_heads * width),
        "v_proj": (hidden, kv_heads * width),
        "o_proj": (heads * width, hidden),
    }
    made = {}
    for layer in range(model.config["num_hidden_layers"]):
        for module in config_of(number)["target_modules"]:
            read, written = shapes[module]
            path = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("lora_A", (RANK, read)), ("lora_B", (written, RANK))):
                made[f"{path}.{part}.weight"] = torch.randn(shape, generator=generator) / 8
    return made


def other_weights(model: torch.nn.Module, update: int) -> list[tuple[str, Tensor]]:
    """Return new weights of a model by name: the rows of each matrix in another order."""
    generator = torch.Generator().manual_seed(update)
    made = []
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and weight.is_floating_point():
            order = torch.randperm(len(weight), generator=generator)
            made.append((name, weight.detach().cpu()[order]))
    return made
