"""The tensors that an engine's objects hold. Knows no engine."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from numpy import ndarray
from paritybit.subjects.engines.shared.missing import PartMissingError
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


def holds_only(holder: Any, known: Collection[str]) -> None:
    """Raise PartMissingError where an engine's object holds a tensor under a name not in `known`.

    That may be one of the known tensors under another name, or one that nobody would judge.
    """
    tensors = (name for name, held in vars(holder).items() if isinstance(held, Tensor))
    unknown = next((name for name in tensors if name not in known), None)
    if unknown is not None:
        raise PartMissingError(
            f"the engine's {type(holder).__name__} holds {unknown}, which is unknown"
        )


def bring_back(buffers: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    """Copy into each buffer what one of its name held before.

    A buffer that is new since, or has another shape by now, is left alone: that it is another one
    is for a property to judge.
    """
    for name, buffer in buffers.items():
        if name in before and buffer.shape == before[name].shape:
            buffer.copy_(before[name])


@contextmanager
def given_back(*places: tuple[Tensor, Any]) -> Iterator[None]:
    """Give back, in the end, what places of tensors held: each an index, `...` for all of one."""
    held = [(tensor, place, tensor[place].clone()) for tensor, place in places]
    try:
        yield
    finally:
        for tensor, place, values in held:
            tensor[place] = values


class Reissued:
    """Gives copies of tensors, each at the address of the last copy of its name, dtype and size.

    If somebody still holds that copy, the new one lies elsewhere. An allocator may do the same.
    What knows a batch's tensor by its address alone, as a memo does, then takes it for the one
    before, and is seen to be stale.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[str, torch.dtype, int], torch.UntypedStorage] = {}

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor, which is called `name` in every batch."""
        key = name, tensor.dtype, tensor.numel()
        memory = self._memory.get(key)
        if memory is None or holders(memory) > 1:
            memory = torch.UntypedStorage(tensor.nbytes, device=tensor.device)
            self._memory[key] = memory
        flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        flat.set_(memory, 0, (tensor.numel(),), (1,))
        return flat.view(tensor.shape).copy_(tensor)


def holders(memory: torch.UntypedStorage) -> int:
    """Return how many tensors and other objects hold some memory."""
    found: int = torch._C._storage_Use_Count(memory._cdata)
    return found


class PinnedArray:
    """Pinned memory by the protocol of arrays that a GPU reads: its address there is the same."""

    def __init__(self, host: Tensor) -> None:
        self.held = host.numpy()
        self.__cuda_array_interface__ = {**self.held.__array_interface__, "version": 2}


def on_device(host: Tensor) -> Tensor:
    """Return a GPU's view of pinned memory; other memory, as on a CPU, is its own view."""
    return torch.as_tensor(PinnedArray(host), device="cuda") if host.is_pinned() else host
