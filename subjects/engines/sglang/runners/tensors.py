"""The tensors that an engine's object holds directly."""

from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def tensors_of(holder: Any) -> dict[str, Tensor]:
    """Return the tensors that an object holds directly, by name."""
    names = [field.name for field in fields(holder)] if is_dataclass(holder) else vars(holder)
    return {
        name: value for name in names if isinstance(value := getattr(holder, name), torch.Tensor)
    }
