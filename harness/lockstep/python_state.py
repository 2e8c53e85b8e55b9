"""The Python state of an engine, and how it differs from an earlier state.

A walk from the engine follows attributes, items, closures, default arguments, the attributes of
classes, the results that functions cache, what a thread or a context has, and the variables of the
engine's modules. Other objects, classes and functions from other packages are compared by their
text. State that the engine declares as changing is left out.
"""

import gc
import logging
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from paritybit.harness.lockstep.bits import bits, tensor_of
from paritybit.harness.lockstep.scale.comparison import digests
from paritybit.subjects.protocol import PythonObjects
from torch import Tensor

PLAIN = (bool, int, float, complex, str, bytes, Enum, torch.dtype, torch.device, type(None))
"""Types whose instances hold no other objects."""

FOREIGN = (ModuleType, BuiltinFunctionType, logging.Logger, logging.Handler)
"""Types whose instances never belong to an engine."""

CachedFunction = type(cache(lambda: None))
"""The type of functions that `functools` wraps to cache their results."""

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Change:
    """One difference: the name of the holder, the full path, and both values as text."""

    name: str
    path: str
    captured: str
    now: str


@dataclass
class Held:
    """The state that a walk found, by path: texts of plain values, tensors, and names."""

    texts: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()

    def copied(self) -> "Held":
        """Return the same state with copies of tensors, or digests of large ones."""
        tensors = {path: comparable(tensor).clone() for path, tensor in self.tensors.items()}
        return Held(self.texts, tensors, self.names, self.modules)


COPIED_ELEMENTS = 2**24
"""Tensors with more elements are not copied, because large weights fill much of a device."""


def comparable(tensor: Tensor) -> Tensor:
    """Return a tensor for comparisons: itself, or digests of its rows if it is large."""
    if tensor.numel() < COPIED_ELEMENTS:
        return tensor
    return digests(bits(tensor).reshape(-1, tensor.shape[-1]))


NOTHING = "nothing"
"""The text in a Change for a value that did not exist."""


def changes(captured: Held, now: Held) -> list[Change]:
    """Return the differences between two states. Reads the device once."""
    # Comparing whole dictionaries is faster than searching for differences in them.
    same = captured.texts == now.texts
    paths = () if same else dict.fromkeys((*captured.texts, *now.texts))
    found = [
        Change(now.names.get(path) or captured.names[path], path, before, after)
        for path in paths
        if (before := captured.texts.get(path, NOTHING)) != (after := now.texts.get(path, NOTHING))
    ]
    alike = [
        path
        for path, tensor in now.tensors.items()
        if captured.texts.get(path) == now.texts[path] and tensor.numel()
    ]
    if not alike:
        return found
    flags = [unlike(captured.tensors[path], comparable(now.tensors[path])) for path in alike]
    of_device = [flag for flag in flags if isinstance(flag, Tensor)]
    read = iter(torch.stack(of_device).tolist()) if of_device else iter(())
    return found + [
        Change(now.names[path], path, "other values", now.texts[path])
        for path, flag in zip(alike, flags, strict=True)
        if (next(read) if isinstance(flag, Tensor) else flag)
    ]


def unlike(one: Tensor, other: Tensor) -> Tensor | bool:
    """Return whether any bit differs between two tensors of one shape and dtype.

    On a GPU the result is a tensor, and the host does not wait.
    """
    left, right = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (one, other))
    return not torch.equal(left, right) if left.is_cpu else (left != right).any()


def held(engines: Mapping[str, PythonObjects], modules: frozenset[str] | None = None) -> Held:
    """Return the Python state of engines and of their modules. None means all loaded modules."""
    return walked(engines, modules).found


def walked(engines: Mapping[str, PythonObjects], modules: frozenset[str] | None) -> "Walk":
    """Return a finished walk over the objects of engines."""
    walk, found = Walk(), set[str]()
    for who, objects in engines.items():
        walk.declared.update(objects.declared)
        walk.packages |= objects.packages
        walk.changing.update(address_of(tensor) for tensor in objects.changing)
        walk.visit(objects.root, who, who)
        found.update(name for name in sys.modules if within(name, objects.packages))
    walk.found.modules = frozenset(found) if modules is None else modules
    for name in sorted(found & walk.found.modules - walk.declared.keys()):
        walk.module(name)
    return walk


@cache
def within(module: str, packages: frozenset[str]) -> bool:
    """Whether a module is one of these packages or is inside one."""
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


Follow = Callable[["Walk", Any, str, str], None]
"""Records a value of some kind. Arguments are the walk, the value, its path and its name."""


class Walk:
    """Follows objects, each once, even if two engines share it.

    `follows` has the handler for each class that was met. `holders` has, by path, the holder of an
    attribute and the attribute's name.
    """

    def __init__(self) -> None:
        self.declared: dict[str, str] = {}
        self.packages: frozenset[str] = frozenset()
        self.changing: set[int] = set()
        self.found = Held()
        self.seen: dict[int, Any] = {}
        self.follows: dict[type, Follow] = {}
        self.holders: dict[str, tuple[Any, str]] = {}

    def visit(self, value: Any, path: str, name: str) -> None:
        """Record a value and everything that it holds. `name` is a short name of its holder."""
        kind = type(value)
        follow = self.follows.get(kind)
        if follow is None:
            kinds = self.FOLLOWED.items()
            follow = next((one for of, one in kinds if isinstance(value, of)), Walk._object)
            self.follows[kind] = follow
        if follow is not Walk._plain:
            if id(value) in self.seen:
                return
            self.seen[id(value)] = value
        follow(self, value, path, name)

    def module(self, name: str) -> None:
        """Follow the variables of a module and the classes and functions that it defines."""
        for key, value in tuple(vars(sys.modules[name]).items()):
            own = getattr(value, "__module__", name) == name
            if not key.startswith("__") and (own or not isinstance(value, FunctionType | type)):
                self.holders[f"{name}.{key}"] = sys.modules[name], key
                self.visit(value, f"{name}.{key}", f"{name}.{key}")

    def own(self, value: Any) -> bool:
        """Whether a class or function is defined in the engine's packages."""
        return within(str(value.__module__), self.packages)

    def follows_cache(self, function: Any) -> bool:
        """Whether the results that a function has cached are state of the engine."""
        name = getattr(function, "__qualname__", "")  # An instance or a partial has none.
        return self.own(function) and f"{function.__module__}.{name}" not in self.declared

    def _note(self, path: str, name: str, text: str) -> None:
        self.found.texts[path] = text
        self.found.names[path] = name

    def _plain(self, value: Any, path: str, name: str) -> None:
        self._note(path, name, repr(value))

    def _foreign(self, value: Any, path: str, name: str) -> None:
        """Ignore a value that never belongs to an engine."""

    def _tensor(self, tensor: Tensor, path: str, name: str) -> None:
        if address_of(tensor) in self.changing:
            return
        shape = "×".join(map(str, tensor.shape)) or "one value"
        self._note(path, name, f"a tensor of {str(tensor.dtype).removeprefix('torch.')} [{shape}]")
        self.found.tensors[path] = tensor.detach()

    def _generator(self, generator: torch.Generator, path: str, name: str) -> None:
        self._tensor(generator.get_state(), path, name)

    def _array(self, array: "np.ndarray[Any, Any]", path: str, name: str) -> None:
        """Follow an array as a tensor, or as text if it is not of numbers."""
        tensor = tensor_of(array)
        if tensor is None:
            self._note(path, name, f"an array of {text_of(array.tolist())}")
        else:
            self._tensor(tensor, path, name)

    def _cached(self, function: Any, path: str, name: str) -> None:
        """Follow a function and the results that it has cached."""
        self.visit(function.__wrapped__, path, name)
        if self.follows_cache(function):
            self._mapping(results_of(function), f"{path}.cache", f"{name}'s cache")

    def _local(self, local: threading.local, path: str, name: str) -> None:
        """Follow what this thread has of an object."""
        if self.own(type(local)):
            self._object(local, path, name)
        else:
            self.visit(vars(local), path, name)

    def _variable(self, variable: "ContextVar[Any]", path: str, name: str) -> None:
        """Follow what this context has of a variable."""
        self.visit(variable.get(None), path, name)

    def _sequence(self, items: Any, path: str, name: str) -> None:
        self._note(path, name, f"a {type(items).__name__} of {len(items)}")
        for place, item in enumerate(tuple(items)):
            self.visit(item, f"{path}[{place}]", f"{name}[{place}]")

    def _set(self, items: Any, path: str, name: str) -> None:
        texts = sorted(text_of(item) for item in items)
        self._note(path, name, f"a {type(items).__name__} of {', '.join(texts) or 'nothing'}")

    def _mapping(self, items: Mapping[Any, Any], path: str, name: str) -> None:
        self._note(path, name, f"a {type(items).__name__} of {len(items)}")
        for place, (key, item) in enumerate(tuple(items.items())):
            label = text_of(key) if isinstance(key, (*PLAIN, tuple)) else str(place)
            self.visit(item, f"{path}[{label}]", f"{name}[{label}]")

    def _function(self, function: FunctionType, path: str, name: str) -> None:
        if not self.own(function):
            return
        for place, cell in enumerate(function.__closure__ or ()):
            self.visit(contents(cell), f"{path}.closure[{place}]", f"{name}'s closure")
        own = (function.__defaults__, function.__kwdefaults__, vars(function))
        for what, value in zip(("defaults", "keyword defaults", "attributes"), own, strict=True):
            if value:
                self.visit(value, f"{path}.{what}", f"{name}'s {what}")

    def _method(self, method: MethodType, path: str, name: str) -> None:
        self.visit(method.__self__, f"{path}.self", name)
        self.visit(method.__func__, path, name)

    def _partial(self, function: "partial[Any]", path: str, name: str) -> None:
        for what in ("func", "args", "keywords"):
            self.visit(getattr(function, what), f"{path}.{what}", name)

    def _wrapped(self, method: Any, path: str, name: str) -> None:
        self.visit(method.__func__, path, name)

    def _class(self, kind: type, path: str, name: str) -> None:
        """Follow a class. Its path does not say whether a module or an object led to it."""
        if not self.own(kind) or issubclass(kind, Enum):
            return
        for base in kind.__mro__[1:]:
            if base is not object:
                self.visit(base, path_of(base), base.__qualname__)
        for key, value in tuple(vars(kind).items()):
            if not key.startswith(("__", "_abc_")) and not isinstance(value, property):
                self._attribute(kind, kind.__qualname__, (key, value), path_of(kind))

    def _object(self, value: Any, path: str, name: str) -> None:
        kind = type(value)
        if kind.__name__ in self.declared:
            return
        if not self.own(kind):
            self._note(path, name, text_of(value))
            return
        self._note(path, name, f"a {kind.__name__}")
        for key, item in attributes_of(value):
            self._attribute(value, kind.__name__, (key, item), path)
        self.visit(kind, path_of(kind), kind.__qualname__)

    def _attribute(self, of: Any, owner: str, item: tuple[str, Any], path: str) -> None:
        key, value = item
        if f"{owner}.{key}" not in self.declared:
            self.holders[f"{path}.{key}"] = of, key
            self.visit(value, f"{path}.{key}", f"{owner}.{key}")

    FOLLOWED: Mapping[Any, Follow] = {
        PLAIN: _plain,
        FOREIGN: _foreign,
        Tensor: _tensor,
        np.ndarray: _array,
        torch.Generator: _generator,
        CachedFunction: _cached,
        threading.local: _local,
        ContextVar: _variable,
        Mapping: _mapping,
        (list, tuple, deque): _sequence,
        (set, frozenset): _set,
        FunctionType: _function,
        MethodType: _method,
        partial: _partial,
        (classmethod, staticmethod): _wrapped,
        type: _class,
    }


def path_of(kind: type) -> str:
    """Return the path of a class's own attributes."""
    return f"class {kind.__module__}.{kind.__qualname__}"


def results_of(function: Any) -> dict[Hashable, Any]:
    """Return the results that a function has cached, by the key of its arguments.

    Only the garbage collector tells them. A bounded cache has a list of keys and results, each
    followed by the type of the list's elements, in the order of use.
    """
    known, found = function.cache_info(), gc.get_referents(function)
    own = [one for one in found if type(one) is dict and one is not vars(function)][-1]
    if known.maxsize is None:
        return dict(own)
    kinds = {type(link) for link in own.values()}
    ends = [place for place, one in enumerate(found) if isinstance(one, type) and one in kinds]
    results = {found[end - 2]: found[end - 1] for end in ends[: known.currsize]}
    return {key: results[key] for key in own}


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, including those in `__slots__`."""
    yield from tuple(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def contents(cell: Any) -> Any:
    """Return the content of a closure's cell, or None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def text_of(value: Any) -> str:
    """Return the text of a value without its address."""
    return value.name if isinstance(value, Enum) else ADDRESS.sub("", repr(value))


def address_of(tensor: Tensor) -> int:
    """Return the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()
