"""The Python state of both engines of a pair after capture, and how it differs after a reset."""

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from enum import Enum
from functools import partial
from itertools import chain, starmap
from operator import is_
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from paritybit.harness.lockstep.bits import tensor_of
from paritybit.harness.lockstep.logs import LogTrap
from paritybit.harness.lockstep.python_state import (
    FOREIGN,
    CachedFunction,
    Change,
    Held,
    Walk,
    address_of,
    attributes_of,
    changes,
    comparable,
    contents,
    held,
    results_of,
    text_of,
    unlike,
    walked,
)
from paritybit.reference.batch import Mode
from paritybit.subjects.captured import CapturedEngine
from paritybit.subjects.protocol import PythonObjects
from torch import Tensor


class Captures:
    """The captures of both engines of a pair.

    - `just_captured`: the contents of their Python objects after capture.
    - `executed`: whether a bug's code ran while they were built and captured. `counted` counts
      its calls.
    - `warnings`: the messages that `log` collected meanwhile.
    """

    def __init__(
        self,
        subject: CapturedEngine,
        fresh: CapturedEngine,
        counted: Counter[str],
        log: LogTrap,
        *,
        keeps_state: bool = True,
    ) -> None:
        self.subject, self.fresh, self._keeps_state = subject, fresh, keeps_state
        self._counted, self._log = counted, log
        self.left: list[Change] = []
        self.just_captured, self._unchanged = Held(), Unchanged(Walk(), Held())
        if not self.nothing_ran:
            self._keep()
        self.executed = counted.total() > 0
        self.warnings = log.take()

    @property
    def engines(self) -> list[CapturedEngine]:
        """Both engines, without duplicates."""
        return list(dict.fromkeys((self.subject, self.fresh)))

    @property
    def nothing_ran(self) -> bool:
        """Whether no engine has captured anything. No step has run then."""
        return not any(one.engine.captured for one in self.engines)

    def lacks(self, modes: Collection[Mode]) -> list[CapturedEngine]:
        """Return the engines in which a runner of these modes is not captured."""
        return [engine for engine in self.engines if engine.lacks(modes)]

    def capture(self, modes: Collection[Mode]) -> None:
        """Capture the runners of these modes that are not captured yet. Reset the worlds first.

        State that earlier steps left on Python objects still counts as undeclared.
        """
        self.left = self.undeclared() if self._keeps_state else []
        before = self._counted.total()
        with self._log:
            for engine in self.lacks(modes):
                engine.capture(modes)
            self.executed = self.executed or self._counted.total() > before
            self._keep()
        self.warnings += self._log.take()

    def undeclared(self) -> list[Change]:
        """Reset both engines. Returns how their Python state differs from that after capture.

        Raises RuntimeError if the state after capture was not kept.
        """
        if self.nothing_ran:
            return []
        if not self._keeps_state:
            raise RuntimeError("what the engines held when just captured was not kept")
        objects = self._reset()
        if self._unchanged.holds():
            return list(self.left)
        now = held(objects, self.just_captured.modules)
        return [*self.left, *changes(self.just_captured, now)]

    def python_state(self) -> Held:
        """Reset both engines, and return the contents of their objects and modules."""
        return held(self._reset())

    def _keep(self) -> None:
        """Reset both engines, and keep their contents as the state after capture."""
        if not self._keeps_state:
            return
        walk = walked(self._reset(), None)
        self.just_captured = walk.found.copied()
        self._unchanged = Unchanged(walk, self.just_captured)

    def _reset(self) -> dict[str, PythonObjects]:
        """Reset both engines, and return their Python objects."""
        objects: dict[str, PythonObjects] = {}
        for name, engine in (("engine", self.subject), ("fresh engine", self.fresh)):
            engine.reset()
            objects[name] = engine.python_objects()
        return objects


SETTLED = (*FOREIGN, Tensor, tuple, frozenset, MethodType, classmethod, staticmethod)
"""Types whose instances hold the same objects for their whole lifetime, and tensors."""

Parts = Callable[[Any], tuple[Any, ...]]
"""Returns the objects that an object holds, and their names."""


class Unchanged:
    """A fast check for whether any object that a walk visited has changed.

    It compares the identities of the objects held and the bits of tensors, which is ten times as
    fast as a new walk. An equal but different object counts as changed; a new walk then decides.
    """

    def __init__(self, walk: Walk, held_then: Held) -> None:
        self._walk = walk
        self._parts_of: dict[type, Parts | None] = {}
        self._held: list[tuple[Any, Parts, tuple[Any, ...]]] = []
        for value in walk.seen.values():
            parts = self._parts(value)
            if parts is not None:
                self._held.append((value, parts, parts(value)))
        for name in walk.found.modules - walk.declared.keys():
            module = sys.modules[name]
            self._held.append((module, of_variables, of_variables(module)))
        tensors = [value for value in walk.seen.values() if isinstance(value, Tensor)]
        self._places = [(tensor, place_of(tensor)) for tensor in tensors]
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._equal: list[tuple[Tensor, Tensor]] = []
        for path, tensor in walk.found.tensors.items():
            copy = held_then.tensors[path]
            if not tensor.is_cpu or copy.shape != tensor.shape:
                self._copies.append((tensor, copy))
            elif not (tensor.is_floating_point() or tensor.is_complex()):
                self._equal.append((tensor, copy))
            elif tensor.is_contiguous():  # Equal floats can have different bits.
                self._equal.append((flat(tensor), flat(copy)))
            else:
                self._copies.append((tensor, copy))

    def holds(self) -> bool:
        """Whether all visited objects are unchanged."""
        for value, parts, before in self._held:
            now = parts(value)
            if len(now) != len(before) or not all(map(is_, now, before)):
                return False
        if any(place_of(tensor) != place for tensor, place in self._places):
            return False
        if not all(starmap(torch.equal, self._equal)):
            return False
        return not any_unlike((copy, comparable(tensor)) for tensor, copy in self._copies)

    def _parts(self, value: Any) -> Parts | None:
        """Return a function for the parts of a value. None if its parts are fixed or ignored."""
        if isinstance(value, FunctionType):
            return of_function if self._walk.own(value) else None
        if isinstance(value, CachedFunction):
            return of_cache if self._walk.follows_cache(value) else None
        if isinstance(value, type):
            followed = self._walk.own(value) and not issubclass(value, Enum)
            return partial(of_class, self._walk.declared) if followed else None
        kind = type(value)
        if kind not in self._parts_of:
            self._parts_of[kind] = self._parts_by_kind(kind)
        return self._parts_of[kind]

    def _parts_by_kind(self, kind: type) -> Parts | None:
        """Return the same for all instances of a class, functions and classes excepted."""
        known = next((parts for of, parts in PARTS.items() if issubclass(kind, of)), None)
        if known is not None:
            return known
        if issubclass(kind, SETTLED) or kind.__name__ in self._walk.declared:
            return None
        if not self._walk.own(kind):
            return lambda value: (sys.intern(text_of(value)),)
        slots = any("__slots__" in vars(one) for one in kind.__mro__)
        declared = any(name.startswith(f"{kind.__name__}.") for name in self._walk.declared)
        return partial(of_object, self._walk.declared) if slots or declared else of_variables


def of_object(declared: Collection[str], value: Any) -> tuple[Any, ...]:
    """Return the names of an object's attributes and their values, without those declared."""
    return undeclared(declared, type(value).__name__, dict(attributes_of(value)))


def of_class(declared: Collection[str], kind: type) -> tuple[Any, ...]:
    """Return a class's bases, and the names of its attributes and their values."""
    return (*kind.__mro__, *undeclared(declared, kind.__qualname__, vars(kind)))


def undeclared(
    declared: Collection[str], owner: str, attributes: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the names and values of the attributes of `owner` that are not declared."""
    kept = (one for one in attributes.items() if f"{owner}.{one[0]}" not in declared)
    return tuple(chain.from_iterable(kept))


def of_mapping(items: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return the keys of a mapping and their values."""
    return (*items, *items.values())


def of_array(array: "np.ndarray[Any, Any]") -> tuple[Any, ...]:
    """Return the form of an array, and its items unless it is followed as a tensor."""
    form = sys.intern(f"{array.dtype} {array.shape} {array.strides}")
    return (form,) if tensor_of(array) is not None else (form, *array.ravel().tolist())


def of_cache(function: Any) -> tuple[Any, ...]:
    """Return the keys and the results that a function has cached."""
    return of_mapping(results_of(function))


def of_variables(value: Any) -> tuple[Any, ...]:
    """Return an object's class, and the names of its variables and their values."""
    variables = vars(value)
    return (type(value), *variables, *variables.values())


def of_function(function: FunctionType) -> tuple[Any, ...]:
    """Return the closure, the default arguments and the attributes of a function."""
    cells = map(contents, function.__closure__ or ())
    return (*cells, function.__defaults__, function.__kwdefaults__, *of_variables(function))


PARTS: Mapping[Any, Parts] = {
    Mapping: of_mapping,
    (list, set, deque): tuple,
    np.ndarray: of_array,
    threading.local: lambda local: (vars(local),),
    ContextVar: lambda variable: (variable.get(None),),
    torch.Generator: lambda generator: (generator.get_state(),),  # A new tensor each time.
}
"""The parts of objects of known classes."""


def place_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return the address, shape, strides and dtype of a tensor."""
    at = address_of(tensor), tensor.storage_offset(), tensor.stride()
    return (*at, tensor.shape, tensor.dtype)


def flat(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8)


def any_unlike(pairs: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Return whether any bit of any pair of tensors differs. Reads the device once."""
    flags = [unlike(*pair) for pair in pairs]
    on_device = [flag for flag in flags if isinstance(flag, Tensor)]
    if any(flag is True for flag in flags):
        return True
    return bool(on_device) and bool(torch.stack(on_device).any())
