"""The tensors that an engine's objects hold. Knows no engine."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor


def tensors_in(objects: Iterable[Any], package: str) -> Iterator[Tensor]:
    """Yield the tensors that objects of a package hold, and arrays of theirs as tensors."""
    for held in objects:
        if isinstance(held, Tensor):
            yield held
        elif isinstance(held, ndarray):
            yield torch.from_numpy(held)
        elif type(held).__module__.startswith(package):
            yield from tensors_in(vars(held).values(), package)
        elif isinstance(held, list | tuple):
            yield from tensors_in(held, package)
