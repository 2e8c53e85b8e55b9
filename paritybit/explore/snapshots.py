"""Copies of machines as bytes, so that a state is reached again without replaying its path.

What never changes is shared by all copies: modules, functions, and objects of the types that an
engine's module names. Tensors are copied by value: an engine that writes through a view of a
tensor would be seen by the comparison with a replayed path, which `search` makes.
"""

import io
import pickle
import weakref
from collections.abc import Collection
from types import FunctionType, ModuleType
from typing import Any

SHARED = FunctionType, ModuleType, type
NAMED = FunctionType, type
"""Types of objects that never change; those that are usually found by their name."""

KEPT: dict[int, Any] = {}
"""What snapshots share, by its number, for as long as this process lives."""


class Snapshots:
    """Saves and loads machines of one kind. Objects of the `shared` types are never copied."""

    def __init__(self, shared: Collection[type]) -> None:
        import torch  # noqa: PLC0415

        self.types = (*SHARED, *shared)
        self.kinds: dict[type, bool] = {}
        self.tensor = torch.Tensor

    def save(self, machine: Any) -> bytes:
        """Return a machine's state, to be loaded in this process."""
        buffer = io.BytesIO()
        Saver(self, buffer).dump(machine)
        return buffer.getvalue()

    def load(self, state: bytes) -> Any:
        """Return a new machine in a state."""
        return pickle.loads(state)

    def is_shared(self, kind: type) -> bool:
        """Whether objects of a type are shared."""
        found = self.kinds.get(kind)
        if found is None:
            found = self.kinds[kind] = issubclass(kind, self.types)
        return found


class Saver(pickle.Pickler):
    """A pickler that names what is shared, and writes tensors by their values."""

    def __init__(self, snapshots: Snapshots, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=5)
        self.snapshots = snapshots

    def reducer_override(self, one: Any) -> Any:
        """Return how an object is found or made again; NotImplemented for its usual way."""
        kind = type(one)
        if kind is self.snapshots.tensor:
            return values_of(one)
        if kind in NAMED and "<" not in one.__qualname__:
            return NotImplemented
        if self.snapshots.is_shared(kind):
            KEPT[id(one)] = one
            return kept, (id(one),)
        if kind is weakref.ref:
            return weakref.ref, (one(),)
        if "__getattr__" in vars(kind):
            return object.__new__, (kind,), vars(one), None, None, restore
        return NotImplemented


def restore(one: Any, state: dict[str, Any]) -> None:
    """Give an object its attributes without asking it for any."""
    one.__dict__.update(state)


def kept(number: int) -> Any:
    """Return what is shared under a number."""
    return KEPT[number]


def values_of(tensor: Any) -> Any:
    """Return how a tensor is made again."""
    values = tensor.numpy().tobytes() if tensor.numel() else b""
    return tensor_of, (values, tuple(tensor.shape), tensor.dtype)


def tensor_of(values: bytes, shape: Any, dtype: Any) -> Any:
    """Return the tensor of some values."""
    import torch  # noqa: PLC0415

    if not values:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(values), dtype=dtype).reshape(shape)
