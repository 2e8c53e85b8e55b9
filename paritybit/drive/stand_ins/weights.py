"""Random weights with which tokens depend on the content of the KV cache."""

import math
import zlib
from typing import Any

import torch

from paritybit.drive.stand_ins.modules import found

LOADER = "sglang.srt.model_loader.loader"


def stand_in_for_weights() -> str | None:
    """Give each parameter individual values, with a scale that keeps activations near 1."""
    loader = found(LOADER)
    if loader is None or not hasattr(loader, "initialize_dummy_weights"):
        return ""
    loader.initialize_dummy_weights = initialise
    return None


def initialise(model: Any, *_: object, **__: object) -> None:
    """Fill the parameters of a model. Values depend only on the name and shape of a parameter."""
    for name, parameter in model.state_dict().items():
        if not torch.is_floating_point(parameter):
            continue
        generator = torch.Generator(device=parameter.device)
        generator.manual_seed(zlib.crc32(name.encode()))
        if parameter.dim() > 1:
            widest = math.sqrt(3 / parameter.shape[-1])
            parameter.uniform_(-widest, widest, generator=generator)
        elif name.endswith("bias"):
            parameter.uniform_(-0.1, 0.1, generator=generator)
        else:
            parameter.uniform_(0.5, 1.5, generator=generator)
