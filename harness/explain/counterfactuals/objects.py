"""The Python objects of an engine at one time, and how to restore them.

Changes of objects that no engine declares would otherwise affect a second run of a forward.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from paritybit.harness.lockstep.python_state import (
    Change,
    address_of,
    changes,
    walked,
)
from paritybit.subjects.captured import CapturedEngine
from torch import Tensor

NOT_THERE = object()
"""The value of an attribute that does not exist."""

KEPT_ELEMENTS = 4096
"""Larger tensors are not copied: they are weights, or are restored elsewhere."""


@dataclass(frozen=True)
class Attribute:
    """An attribute whose value has changed, by the whole path to it."""

    change: Change
    holder: Any
    key: str


class Kept:
    """The contents of an engine's objects at one time."""

    def __init__(self, engine: CapturedEngine) -> None:
        self.engine = engine
        walk = walked({"engine": engine.python_objects()}, None)
        self.held, self.holders = walk.found.copied(), walk.holders
        self.objects = tuple(walk.seen.values())
        static = {
            address_of(buffer)
            for buffers in engine.all_static_buffers()
            for buffer in buffers.values()
        }
        self._variables: list[tuple[Any, dict[str, Any]]] = []
        self._contents: list[tuple[Any, Any, Callable[[Any, Any], object]]] = []
        self._tensors: list[Tensor] = []
        self._values: list[Tensor] = []
        changing = {address_of(tensor) for tensor in engine.python_objects().changing} | static
        for value in self.objects:
            kind: type = type(value)
            if (handler := handler_of(kind)) is not None:
                copied, refill = handler
                self._contents.append((value, copied(value), refill))
            elif isinstance(value, Tensor):
                if value.numel() <= KEPT_ELEMENTS and address_of(value) not in changing:
                    self._tensors.append(value)
                    self._values.append(value.detach().clone())
            elif isinstance(getattr(value, "__dict__", None), dict):
                self._variables.append((value, dict(vars(value))))
        self._attributes = {
            path: (holder, key, vars(holder).get(key, NOT_THERE))
            for path, (holder, key) in self.holders.items()
            if isinstance(holder, type | ModuleType)
        }

    def restore(self) -> None:
        """Restore the contents of the objects."""
        for value, variables in self._variables:
            vars(value).clear()
            vars(value).update(variables)
        for holder, key, value in self._attributes.values():
            if vars(holder).get(key, NOT_THERE) is not value:
                put(holder, key, value)
        for container, contents, refill in self._contents:
            refill(container, contents)
        if self._tensors:
            torch._foreach_copy_([tensor.detach() for tensor in self._tensors], self._values)

    def put_back(self, attribute: Attribute) -> None:
        """Restore one attribute with its contents, or delete it if it did not exist."""
        holder, key = attribute.holder, attribute.key
        value = next(
            (variables.get(key, NOT_THERE) for of, variables in self._variables if of is holder),
            self._attributes.get(attribute.change.path, (None, "", NOT_THERE))[2],
        )
        put(holder, key, value)
        for container, contents, refill in self._contents:
            if container is value:
                refill(container, contents)

    def changed_by(self, now: "Kept") -> Iterator[Attribute]:
        """Yield the attributes that differ `now`. For nested ones, yield only the outermost."""
        found = {change.path: change for change in changes(self.held, now.held)}
        attributes: dict[str, Attribute] = {}
        for path, change in found.items():
            place = path
            while place and place not in now.holders and place not in self.holders:
                place = place[: max(place.rfind("."), place.rfind("["))]
            holders = now.holders if place in now.holders else self.holders
            if place in holders and place not in attributes:
                attributes[place] = Attribute(found.get(place, change), *holders[place])
        yield from attributes.values()


def put(holder: Any, key: str, value: Any) -> None:
    """Set an attribute, or delete it if `value` is NOT_THERE."""
    if isinstance(holder, type | ModuleType):
        now = vars(holder).get(key, NOT_THERE)  # Read from `vars`, so no method is bound.
        if now is not value and value is NOT_THERE:
            delattr(holder, key)
        elif now is not value:
            setattr(holder, key, value)
        return
    variables = getattr(holder, "__dict__", None)
    if isinstance(variables, dict) and value is NOT_THERE:
        variables.pop(key, None)
    elif value is not NOT_THERE:
        object.__setattr__(holder, key, value)


def fill(container: Any, contents: Any) -> None:
    """Replace the items of a container."""
    container.clear()
    (container.update if isinstance(container, (dict, set)) else container.extend)(contents)


def overwrite(array: "np.ndarray[Any, Any]", contents: Any) -> None:
    """Replace the elements of an array, unless it is read-only."""
    if array.flags.writeable:
        array[...] = contents


def set_variable(variable: "ContextVar[Any]", value: Any) -> None:
    """Set a context variable. It keeps its value if the context had none, as it cannot be unset."""
    if value is not NOT_THERE:
        variable.set(value)


Handler = tuple[Callable[[Any], Any], Callable[[Any, Any], object]]
"""Returns a copy of an object's contents; gives the object such contents again."""

HANDLERS: Mapping[Any, Handler] = {
    (dict, list, set, deque): (lambda container: container.copy(), fill),
    np.ndarray: (lambda array: array.copy(), overwrite),
    ContextVar: (lambda variable: variable.get(NOT_THERE), set_variable),
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
}
"""For each type of objects whose contents are kept."""


@cache
def handler_of(kind: type) -> Handler | None:
    """Return the handler of a type, or None if the contents of its objects are not kept."""
    return next((handler for of, handler in HANDLERS.items() if issubclass(kind, of)), None)
