"""The tensors that an engine's objects hold. Knows no engine."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor

from subjects.engines.shared.missing import PartMissingError


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


def holds_only(holder: Any, known: Collection[str]) -> None:
    """Raise PartMissingError where an engine's object holds a tensor by a name that is not known.

    That may be one of those known, by another name, or one that nobody judges.
    """
    tensors = (name for name, held in vars(holder).items() if isinstance(held, Tensor))
    unknown = next((name for name in tensors if name not in known), None)
    if unknown is not None:
        raise PartMissingError(f"the engine's {type(holder).__name__} holds {unknown}, unheard of")


@contextmanager
def given_back(*places: tuple[Tensor, Any]) -> Iterator[None]:
    """Give back, in the end, what places of tensors held: each an index, `...` for all of one."""
    held = [(tensor, place, tensor[place].clone()) for tensor, place in places]
    try:
        yield
    finally:
        for tensor, place, values in held:
            tensor[place] = values


class PinnedArray:
    """Pinned memory by the protocol of arrays that a GPU reads: its address there is the same."""

    def __init__(self, host: Tensor) -> None:
        self.held = host.numpy()
        self.__cuda_array_interface__ = {**self.held.__array_interface__, "version": 2}


def on_device(host: Tensor) -> Tensor:
    """Return a GPU's view of pinned memory; other memory, as on a CPU, is its own view."""
    return torch.as_tensor(PinnedArray(host), device="cuda") if host.is_pinned() else host
