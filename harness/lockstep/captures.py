"""What both engines of a pair were when they had just been captured, and what is left of it."""

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from itertools import chain, starmap
from operator import is_
from types import FunctionType, MethodType
from typing import Any

import torch
from paritybit.harness.lockstep.logs import LogTrap
from paritybit.harness.lockstep.python_state import (
    FOREIGN,
    Change,
    Held,
    Walk,
    address_of,
    attributes_of,
    changes,
    comparable,
    contents,
    held,
    text_of,
    unlike,
    walked,
)
from paritybit.reference.batch import Mode
from paritybit.subjects.captured import CapturedEngine
from paritybit.subjects.protocol import EngineUnderTest, Offer, PythonObjects
from torch import Tensor


class Captures:
    """What both engines of a pair were when they had just been captured.

    `just_captured` is what their Python objects held then. `executed` says whether code of a bug
    on trial ran while they were built and captured: `counted` counts its calls. `warnings` are
    what `log` trapped meanwhile. An engine of others has captured everything once it is built.
    """

    def __init__(
        self,
        subject: EngineUnderTest,
        fresh: EngineUnderTest,
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
        """Those of both engines that are ours, each once."""
        both = dict.fromkeys((self.subject, self.fresh))
        return [engine for engine in both if isinstance(engine, CapturedEngine)]

    @property
    def nothing_ran(self) -> bool:
        """Whether both engines are ours and have captured nothing, so that no step has run."""
        return bool(self.engines) and not any(one.engine.captured for one in self.engines)

    def lacks(self, modes: Collection[Mode]) -> list[CapturedEngine]:
        """Return those of our engines in which the runner of one of these modes is not captured."""
        return [engine for engine in self.engines if engine.lacks(modes)]

    def capture(self, modes: Collection[Mode]) -> None:
        """Capture the runners of these modes that are not captured yet, over worlds just reset.

        What steps before have left on Python objects stays undeclared.
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
        """Reset both engines; return what they hold and did not when they were just captured.

        Raises RuntimeError if that was not kept.
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
        """Reset both engines; return what their objects and all of their modules hold."""
        return held(self._reset())

    def _keep(self) -> None:
        """Reset both engines, and keep what they hold as what they held when just captured."""
        if not self._keeps_state:
            return
        walk = walked(self._reset(), None)
        self.just_captured = walk.found.copied()
        self._unchanged = Unchanged(walk, self.just_captured)

    def _reset(self) -> dict[str, PythonObjects]:
        """Reset both engines; return the Python objects of those that offer theirs."""
        objects: dict[str, PythonObjects] = {}
        if Offer.PYTHON_STATE not in self.subject.missing:
            self.subject.reset()
            objects["engine"] = self.subject.python_objects()
        if Offer.PYTHON_STATE not in self.fresh.missing:
            self.fresh.recapture()
            objects["fresh engine"] = self.fresh.python_objects()
        return objects


SETTLED = (*FOREIGN, Tensor, tuple, frozenset, MethodType, classmethod, staticmethod)
"""What goes on holding the same objects for as long as it lives, and tensors."""

Parts = Callable[[Any], tuple[Any, ...]]
"""Gives the objects that another one holds, and the names it holds them by."""


class Unchanged:
    """The very objects that were held where a walk had come by, and the bits of tensors.

    Whether each of them still holds the same is known ten times as fast as what they hold. What
    holds equal objects that are others counts as changed: it takes another walk to know.
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
            elif tensor.is_contiguous():  # Equal floats may have other bits.
                self._equal.append((flat(tensor), flat(copy)))
            else:
                self._copies.append((tensor, copy))

    def holds(self) -> bool:
        """Whether all of them hold what they held."""
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
        """Return what gives the parts of a value, None of one whose parts stay or do not count."""
        if isinstance(value, FunctionType):
            return of_function if self._walk.own(value) else None
        if isinstance(value, type):
            return self._of_class if self._walk.own(value) and not issubclass(value, Enum) else None
        kind = type(value)
        if kind not in self._parts_of:
            self._parts_of[kind] = self._parts_by_kind(kind)
        return self._parts_of[kind]

    def _parts_by_kind(self, kind: type) -> Parts | None:
        """Return the same for all objects of a class that are no functions and no classes."""
        if issubclass(kind, Mapping):
            return of_mapping
        if issubclass(kind, list | set | deque):
            return tuple
        if issubclass(kind, torch.Generator):
            return lambda generator: (generator.get_state(),)  # Always another: a walk looks at it.
        if issubclass(kind, SETTLED) or kind.__name__ in self._walk.declared:
            return None
        if not self._walk.own(kind):
            return lambda value: (sys.intern(text_of(value)),)
        slots = any("__slots__" in vars(one) for one in kind.__mro__)
        declared = any(name.startswith(f"{kind.__name__}.") for name in self._walk.declared)
        return self._of_object if slots or declared else of_variables

    def _of_object(self, value: Any) -> tuple[Any, ...]:
        return self._undeclared(type(value).__name__, dict(attributes_of(value)))

    def _of_class(self, kind: type) -> tuple[Any, ...]:
        return (*kind.__mro__, *self._undeclared(kind.__qualname__, vars(kind)))

    def _undeclared(self, owner: str, attributes: Mapping[str, Any]) -> tuple[Any, ...]:
        declared = self._walk.declared
        kept = (one for one in attributes.items() if f"{owner}.{one[0]}" not in declared)
        return tuple(chain.from_iterable(kept))


def of_mapping(items: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return the keys of a mapping and their values."""
    return (*items, *items.values())


def of_variables(value: Any) -> tuple[Any, ...]:
    """Return an object's class, and the names of its variables and their values."""
    variables = vars(value)
    return (type(value), *variables, *variables.values())


def of_function(function: FunctionType) -> tuple[Any, ...]:
    """Return what a function holds by its closure, its default arguments and its attributes."""
    cells = map(contents, function.__closure__ or ())
    return (*cells, function.__defaults__, function.__kwdefaults__, *of_variables(function))


def place_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return where a tensor lies, and its form."""
    at = address_of(tensor), tensor.storage_offset(), tensor.stride()
    return (*at, tensor.shape, tensor.dtype)


def flat(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8)


def any_unlike(pairs: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Return whether any bit of any pair of tensors differs, reading the device once."""
    flags = [unlike(*pair) for pair in pairs]
    on_device = [flag for flag in flags if isinstance(flag, Tensor)]
    if any(flag is True for flag in flags):
        return True
    return bool(on_device) and bool(torch.stack(on_device).any())
