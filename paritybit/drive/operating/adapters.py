"""Tiny LoRA adapters with random weights, and the requests that use them."""

import base64
import inspect
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import torch

from paritybit.drive.models import Model
from paritybit.drive.operating.sglang import packed
from paritybit.drive.requests import with_each
from paritybit.drive.script import MOST_ADAPTERS, Planned, Wave

RANK = 4

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")

ADAPTED = (MODULES, ("q_proj", "v_proj"), ("o_proj",))
"""The modules that adapters change, in turn. An engine clears what an evicted one had in others."""

LOADED = 2
"""The most adapters of a batch, including the base model: fewer than there are."""


def name_of(number: int) -> str:
    """Return the name of an adapter. Numbers start at 1."""
    return f"adapter-{number}"


def id_of(number: int, version: int) -> str:
    """Return sglang's identifier of an adapter, which is another one each time it is loaded."""
    return f"{name_of(number)} version {version}"


def config_of(number: int) -> dict[str, Any]:
    """Return the configuration of an adapter."""
    modules = list(ADAPTED[number % len(ADAPTED)])
    return {"peft_type": "LORA", "target_modules": modules, "r": RANK, "lora_alpha": 2 * RANK}


def loads(structures: Any, model: Model, count: int, ranks: int = 1, version: int = 0) -> list[Any]:
    """Return sglang's own requests that load the adapters for the attention of a model.

    Each rank unpacks an adapter of its own. They first unload those of the version before.
    """
    kind = structures.LoadLoRAAdapterFromTensorsReqInput
    many = "serialized_named_tensors" in inspect.signature(kind).parameters
    made = []
    for number in range(1, count + 1):
        data = [packed(weights(model, number, version)) for _ in range(ranks if many else 1)]
        name, tensors = name_of(number), base64.b64encode(data[0]).decode()
        given = {"serialized_named_tensors": data} if many else {"serialized_tensors": tensors}
        if version:
            old = {"lora_name": name, "lora_id": id_of(number, version - 1)}
            made.append(structures.UnloadLoRAAdapterReqInput(**old))
        more = {"lora_id": id_of(number, version), "config_dict": config_of(number)}
        made.append(kind(lora_name=name, **given, **more))
    return made


def weights(model: Model, number: int, version: int = 0) -> dict[str, torch.Tensor]:
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


def with_adapters(seed: int, given: Iterator[Wave], count: int) -> Iterator[Wave]:
    """Give requests one of `count` adapters, or none, with the same probability.

    Half of them get that of the first request whose prompt begins with the same text.
    """
    chance, firsts = Random(f"adapters {seed}"), dict[str, int | None]()

    def asks(one: Planned) -> Planned:
        drawn = chance.choice((None, *range(1, count + 1)))
        first = firsts.setdefault(one.prompt[0].text, drawn)
        return replace(one, adapter=chance.choice((first, drawn)))

    return with_each(given, asks) if count else given
