"""The parts of a subject, and the classes that a bug puts before them.

A bug in code is a class with the methods that differ. It precedes the correct class in the method
resolution order, so other methods stay the same, and `super()` calls the correct method.
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
    """A part that a bug may change. The first ones belong only to the runner under test."""

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
    """The classes that precede those of the correct parts, outermost first.

    `executed` counts the calls of overridden code by name, whichever base class has it. It
    distinguishes a bug whose code never ran from one that no property detected.
    """

    before: Mapping[Part, tuple[type, ...]] = field(default_factory=dict)
    executed: Counter[str] = field(default_factory=Counter, compare=False)

    def of(self, part: Part, right: type[Built]) -> type[Built]:
        """Return the class to build a part from: `right` itself if nothing precedes it."""
        before = self.before.get(part, ())
        if not before:
            return right
        inner = new_class(right.__name__, (*before, right))
        kinds = [kind for kind in inner.__mro__ if kind not in right.__mro__]
        names = {name for kind in kinds for name in vars(kind) if not name.startswith("__")}
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
        """Return these parts with further classes before the existing ones."""
        return Parts(
            {
                part: (*((changes[part],) if part in changes else ()), *self.before.get(part, ()))
                for part in Part
                if part in changes or part in self.before
            }
        )

    def _counted(self, name: str, code: Any) -> Any:
        """Return a method or property that counts its calls under `name`."""
        if isinstance(code, property):
            return property(self._counted(name, code.fget), code.fset)

        @wraps(code)
        def counted(*args: Any, **keywords: Any) -> Any:
            self.executed[name] += 1
            return code(*args, **keywords)

        return counted


RIGHT_PARTS = Parts()
"""The parts of a subject without a bug."""
