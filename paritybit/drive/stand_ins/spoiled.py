"""Memory that an engine only allocates: integers in it are no longer zero by luck.

On a CPU, new memory is often zero, which is the slot of padding and the number of no block. On a
GPU it holds whatever was there before, such as slots in use.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LEFT = 33
"""What new memory holds: a slot, a block or a length that may be in use, within all tables."""

INTEGERS = torch.int32, torch.int64


def spoil_new_memory() -> None:
    """Fill the integers of memory that is only allocated."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        setattr(owner, name, spoiled(getattr(owner, name)))


def spoiled(made: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that fills the integers of the tensors that it makes."""

    @functools.wraps(made)
    def making(*args: Any, **kwargs: Any) -> Any:
        found = made(*args, **kwargs)
        if type(found) is Tensor and found.dtype in INTEGERS and found.device.type == "cpu":
            found.fill_(LEFT)
        return found

    return making
