"""The parts that a subject is built from, and the classes that a bug puts before them.

A bug of a code path is a class with the methods that differ. It comes before the right class
in the method resolution order, so that what it does not override stays as it is, and `super()`
is the right method.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import wraps
from inspect import getattr_static
from types import FunctionType, new_class
from typing import Any, TypeVar, cast

from paritybit.compat import StrEnum

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
    """The classes that come before those of the right parts, the outermost first.

    `executed` counts the calls of what they override, by name, so that a bug whose code never
    ran can be told from one that nobody saw.
    """

    before: Mapping[Part, tuple[type, ...]] = field(default_factory=dict)
    executed: Counter[str] = field(default_factory=Counter, compare=False)

    def of(self, part: Part, right: type[Built]) -> type[Built]:
        """Return the class that a part is built from: `right` itself where nothing differs."""
        before = self.before.get(part, ())
        if not before:
            return right
        inner = new_class(right.__name__, (*before, right))
        names = {name for kind in before for name in vars(kind) if not name.startswith("__")}
        found = {name: getattr_static(inner, name) for name in sorted(names)}
        counted = {
            name: self._counted(name, code)
            for name, code in found.items()
            if isinstance(code, FunctionType | property)
        }
        return cast(
            type[Built], new_class(right.__name__, (inner,), {}, lambda body: body.update(counted))
        )

    def with_before(self, changes: Mapping[Part, type]) -> "Parts":
        """Return these parts with further classes, each before those there are."""
        return Parts(
            {
                part: (*((changes[part],) if part in changes else ()), *self.before.get(part, ()))
                for part in Part
                if part in changes or part in self.before
            }
        )

    def _counted(self, name: str, code: Any) -> Any:
        """Return a method or a property whose calls are counted under `name`."""
        if isinstance(code, property):
            return property(self._counted(name, code.fget), code.fset)

        @wraps(code)
        def counted(*args: Any, **keywords: Any) -> Any:
            self.executed[name] += 1
            return code(*args, **keywords)

        return counted


RIGHT_PARTS = Parts()
"""The parts of a subject without a bug."""
