"""The parts that a subject is built from, and the classes that a bug puts before them.

A bug of a code path is a class with the methods that differ. It comes before the right class
in the method resolution order, so that what it does not override stays as it is, and `super()`
is the right method.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import new_class
from typing import TypeVar, cast

Built = TypeVar("Built")


class Part(StrEnum):
    """What a bug may differ in. The first ones are those of the runner on trial alone."""

    RUNNER = "graph runner"
    INPUTS = "static inputs"
    METADATA = "attention metadata"
    ACCESS = "KV access of a forward"
    CAPTURE = "capture"
    ENGINE = "engine"
    POOL = "engine's view of a pool"
    BUFFERS = "pool of static buffers"
    TABLES = "index tables"
    ALLOCATOR = "allocator"
    OPS = "ops"
    OVERLAP = "order of device work where steps overlap"


@dataclass(frozen=True)
class Parts:
    """The classes that come before those of the right parts, the outermost first."""

    before: Mapping[Part, tuple[type, ...]] = field(default_factory=dict)

    def of(self, part: Part, right: type[Built]) -> type[Built]:
        """Return the class that a part is built from: `right` itself where nothing differs."""
        before = self.before.get(part, ())
        if not before:
            return right
        return cast(type[Built], new_class(right.__name__, (*before, right)))

    def with_before(self, changes: Mapping[Part, type]) -> "Parts":
        """Return these parts with further classes, each before those there are."""
        return Parts(
            {
                part: (*((changes[part],) if part in changes else ()), *self.before.get(part, ()))
                for part in Part
                if part in changes or part in self.before
            }
        )


RIGHT_PARTS = Parts()
"""The parts of a subject without a bug."""
