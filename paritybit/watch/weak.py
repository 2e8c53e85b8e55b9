"""References to objects of the engine that keep none of them alive.

The engine frees its KV tensors, pools and graphs when it drops them, even if they are watched.
"""

import weakref
from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from paritybit.watch.facts import Group, Layer

V = TypeVar("V")


class Weakly:
    """An attribute that does not keep its value alive. It is None once the value is gone."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_weak_{name}"

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)[self.name] = (lambda: None) if value is None else weakref.ref(value)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None or self.name not in vars(owner):
            raise AttributeError(self.name)  # A dataclass then has no default for it.
        return vars(owner)[self.name]()


RELEASED = "the engine released the memory of its KV cache"


class ReleasedError(RuntimeError):
    """The engine released the memory of its KV cache."""


def span(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its memory, and the byte after its last one."""
    size, first = tensor.element_size(), int(tensor.storage_offset())
    if not tensor.numel():
        return first * size, first * size
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first * size, (first + last + 1) * size


class WeakTensor:
    """A tensor whose memory belongs to the engine. A call returns the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.view = tensor.storage_offset(), tensor.size(), tensor.stride()
        self.dtype = tensor.dtype
        self.first, self.end = span(tensor)

    def __call__(self) -> Tensor:
        """Return the tensor. Raises ReleasedError if its memory was released."""
        storage = self._storage()
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(storage, *self.view)

    @property
    def address(self) -> int:
        """The address of the tensor's first byte. Raises ReleasedError."""
        address: int = self._storage().data_ptr() + self.first
        return address

    def _storage(self) -> Any:
        # Every release of torch that has `StorageWeakRef` shares storages by this method.
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None or storage.nbytes() < self.end:
            raise ReleasedError(RELEASED)
        return storage


class WeakLayer(Layer):
    """A layer that keeps none of its tensors alive."""

    def __init__(self, layer: Layer) -> None:
        held = tuple(map(WeakTensor, layer.tensors))
        vars(self).update(name=layer.name, window=layer.window, held=held)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors. Raises ReleasedError if the engine released their memory."""
        held: tuple[WeakTensor, ...] = vars(self)["held"]
        return tuple(one() for one in held)


def weakened(group: Group) -> Group:
    """Return a group that keeps none of its tensors alive."""
    layers = (one if isinstance(one, WeakLayer) else WeakLayer(one) for one in group.layers)
    return replace(group, layers=tuple(layers))


class ByObject(Generic[V]):
    """Maps objects to values by identity, and drops a value when its object dies.

    Names and numbers, which cannot be referenced weakly, are compared by value.
    """

    def __init__(self) -> None:
        self.weak: dict[int, tuple[weakref.ref[object], V]] = {}
        self.strong: dict[object, V] = {}

    def __setitem__(self, one: object, value: V) -> None:
        key = id(one)
        try:
            self.weak[key] = weakref.ref(one, lambda _: self.weak.pop(key, None)), value
        except TypeError:
            self.strong[one] = value

    def get(self, one: object) -> V | None:
        """Return the value of an object, or None if it has none."""
        reference, value = self.weak.get(id(one), (None, None))
        if reference is not None and reference() is one:
            return value
        return self.strong.get(one) if isinstance(one, Hashable) else None
