"""Snapshots of the objects of a machine, to restore a state without replaying its path.

A snapshot lists the mutable objects that a machine refers to, each with its content. To restore it,
each content is written back to its object, so the identity of objects is kept. Immutable objects
are skipped: modules, functions, types, and the types that an engine's module declares. `search`
compares restored states with replayed ones.
"""

import enum
import logging
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from gc import get_referents
from operator import is_, itemgetter
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

CONSTANT = (
    *(type, ModuleType, FunctionType, BuiltinFunctionType, enum.Enum, logging.Logger),
    *(str, bytes, int, float, type(None)),
)
"""Types of immutable objects that refer to no mutable objects."""

MISSING = object()
"""The content of an unset slot."""

SLOT = 8
ENTRY = 150
"""Approximate bytes of a reference, and of a content without its references."""

Pairs = list[tuple[Any, Any]]
"""Parts of objects, each with its content."""

Objects = Sequence[Any]


@dataclass(frozen=True, eq=False)
class Part:
    """A mutable part of an object.

    - `of`: returns the part of an object.
    - `copy`: returns the content of a part.
    - `write`: writes contents back.
    - `changed`: returns the indices of parts whose contents have changed.
    """

    of: Callable[[Any], Any]
    copy: Callable[[Any], Any]
    write: Callable[[Pairs], None]
    changed: Callable[[Pairs], list[int]]


class Snapshot:
    """The parts that an object refers to, each with its content.

    Unchanged contents are shared with the previous snapshot. `size` is the approximate number of
    bytes of the others.
    """

    def __init__(self, root: Any, kept: dict[Part, Pairs]) -> None:
        self.root, self.kept = root, kept
        self.size = SLOT * sum(map(len, kept.values()))

    def restore(self, after: "Snapshot | None" = None) -> Any:
        """Write the contents back, and return the object.

        With `after`, the current state is that snapshot, and only differences are written.
        """
        for part, pairs in self.kept.items():
            there = after.kept.get(part, []) if after is not None else []
            both = zip(pairs, there, strict=False)
            part.write([mine for mine, other in both if mine is not other] + pairs[len(there) :])
        return self.root

    def keep(self, part: Part, live: Any, place: int | None = None) -> None:
        """Add a part with its content, or replace the content at an index."""
        content = part.copy(live)
        self.size += ENTRY + SLOT * len(content)
        pairs = self.kept.setdefault(part, [])
        if place is None:
            pairs.append((live, content))
        else:
            pairs[place] = live, content


class Constant(dict[type, bool]):
    """Caches whether objects of a type are immutable."""

    def __init__(self, types: tuple[type, ...]) -> None:
        super().__init__()
        self.types = types

    def __missing__(self, kind: type) -> bool:
        self[kind] = issubclass(kind, self.types)
        return self[kind]


class Parts(dict[type, tuple["Part", ...]]):
    """Caches the parts of a type's objects."""

    def __missing__(self, kind: type) -> tuple[Part, ...]:
        self[kind] = parts_of(kind)
        return self[kind]


class Snapshots:
    """Saves machines of one kind. Objects of the `shared` types are immutable."""

    def __init__(self, shared: Collection[type] = ()) -> None:
        self.constant = Constant((*CONSTANT, *shared))
        self.parts = Parts()

    def save(
        self, root: Any, before: Snapshot | None = None, touched: Objects | None = None
    ) -> Snapshot:
        """Return the contents of everything that an object refers to.

        `before` is the snapshot that was restored before the last action. Only parts that have
        changed since are followed. For `touched`, see `changed`.
        """
        found, known = Snapshot(root, {}), set[int]()
        rest = [root] if before is None else []
        if before is not None:
            found = Snapshot(root, {part: pairs.copy() for part, pairs in before.kept.items()})
            for part, places in self.changed(before, touched).items():
                for place in places:
                    live, _ = found.kept[part][place]
                    found.keep(part, live, place)
                    rest.append(live)
            if rest:
                for pairs in before.kept.values():
                    known.update(map(id, map(itemgetter(0), pairs)))
                rest = self.behind(rest)
        while rest:
            wave: list[Any] = []
            for one in rest:
                if id(one) in known:
                    continue
                known.add(id(one))
                parts = self.parts[type(one)]
                if not parts:
                    wave.append(one)
                for part in parts:
                    live = part.of(one)
                    if live is one or id(live) not in known:
                        known.add(id(live))
                        found.keep(part, live)
                        wave.append(live)
            rest = self.behind(wave)
        return found

    def undo(self, before: Snapshot, touched: Objects) -> None:
        """Restore a snapshot after an action that changed only parts of some objects."""
        for part, places in self.changed(before, touched).items():
            part.write([before.kept[part][place] for place in places])

    def changed(self, before: Snapshot, touched: Objects | None) -> dict[Part, list[int]]:
        """Return the indices of parts that an action changed.

        `touched` are the objects that it may have changed. None means any object.
        """
        if touched is None:
            return {part: part.changed(pairs) for part, pairs in before.kept.items()}
        found: dict[Part, list[int]] = {}
        for one in touched:
            for part in self.parts[type(one)]:
                live, pairs = part.of(one), before.kept[part]
                # Objects that a scheduler reports are near the machine, so near the beginning.
                place = next(at for at, pair in enumerate(pairs) if pair[0] is live)
                if part.changed([pairs[place]]):
                    found.setdefault(part, []).append(place)
        return found

    def behind(self, wave: list[Any]) -> list[Any]:
        """Return the mutable objects that objects refer to."""
        found = get_referents(*(one for one in wave if not isinstance(one, weakref.ref)))
        found += [one() for one in wave if isinstance(one, weakref.ref)]
        constant = self.constant
        return [one for one in found if not constant[type(one)]]


def itself(one: Any) -> Any:
    """Return the object."""
    return one


def attributes(one: Any) -> Any:
    """Return the attributes of an object."""
    return one.__dict__


def write_attributes(pairs: Pairs) -> None:
    """Restore the attributes of objects. Their order has no meaning."""
    for live, content in pairs:
        live.update(content)
        if len(live) != len(content):
            live.clear()
            live.update(content)


def write_whole(pairs: Pairs) -> None:
    """Restore the contents of dictionaries and sets."""
    for live, content in pairs:
        if live or content:
            live.clear()
            live.update(content)


def changed_pairs(pairs: Pairs) -> list[int]:
    """Return the indices of dictionaries with changed keys or values."""
    return [
        place
        for place, (live, content) in enumerate(pairs)
        if (live or content)
        and not (
            len(live) == len(content)
            and all(map(is_, live, content))
            and all(map(is_, live.values(), content.values()))
        )
    ]


def write_items(pairs: Pairs) -> None:
    """Restore the items of sequences."""
    for live, content in pairs:
        live[:] = content


def changed_items(pairs: Pairs) -> list[int]:
    """Return the indices of sequences with changed items."""
    return [
        place
        for place, (live, content) in enumerate(pairs)
        if len(live) != len(content) or not all(map(is_, live, content))
    ]


def unequal(pairs: Pairs) -> list[int]:
    """Return the indices of objects that differ from their content."""
    return [place for place, (live, content) in enumerate(pairs) if live != content]


def write_ends(pairs: Pairs) -> None:
    """Restore the items of deques."""
    for live, content in pairs:
        live.clear()
        live.extend(content)


def copy_tensor(live: Any) -> Any:
    """Return the memory of a tensor, and a copy of it."""
    memory = live.numpy()
    return memory, memory.copy()


def write_tensors(pairs: Pairs) -> None:
    """Restore the values of tensors."""
    for _, (memory, values) in pairs:
        memory[...] = values


def changed_tensors(pairs: Pairs) -> list[int]:
    """Return the indices of tensors with changed values."""
    return [
        place
        for place, (_, (memory, values)) in enumerate(pairs)
        if memory.tobytes() != values.tobytes()
    ]


def in_slots(kind: type) -> Part | None:
    """Return the part for the slots of a type's objects, or None if it has no slots."""
    found = [
        one
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for one in vars(base).values()
        if isinstance(one, MemberDescriptorType)
    ]

    def copy(live: Any) -> list[Any]:
        return [getattr(live, one.__name__, MISSING) for one in found]

    def write(pairs: Pairs) -> None:
        for live, content in pairs:
            for one, value in zip(found, content, strict=True):
                if value is not MISSING:
                    one.__set__(live, value)
                elif hasattr(live, one.__name__):
                    one.__delete__(live)

    def changed(pairs: Pairs) -> list[int]:
        return [
            place
            for place, (live, content) in enumerate(pairs)
            if not all(map(is_, copy(live), content))
        ]

    return Part(itself, copy, write, changed) if found else None


ATTRIBUTES = Part(attributes, dict.copy, write_attributes, changed_pairs)
TENSOR = Part(itself, copy_tensor, write_tensors, changed_tensors)
CONTAINERS: dict[type, Part] = {
    dict: Part(itself, lambda live: live.copy(), write_whole, changed_pairs),
    list: Part(itself, list, write_items, changed_items),
    array: Part(itself, lambda live: live[:], write_items, unequal),
    set: Part(itself, set, write_whole, unequal),
    deque: Part(itself, list, write_ends, changed_items),
}
"""The parts of built-in containers."""


def parts_of(kind: type) -> tuple[Part, ...]:
    """Return the mutable parts of a type's objects."""
    import torch  # noqa: PLC0415

    if issubclass(kind, torch.Tensor):
        return (TENSOR,)
    found = [part for base, part in CONTAINERS.items() if issubclass(kind, base)]
    if kind.__dictoffset__:
        found.append(ATTRIBUTES)
    slots = in_slots(kind)
    return (*found, slots) if slots is not None else tuple(found)
