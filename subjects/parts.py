"""Puts a bug's classes before the correct ones.

A bug in code is a subclass of a correct class, with the methods that differ. It precedes the
correct class in the method resolution order, so other methods stay the same, and `super()` calls
the correct method.
"""

from dataclasses import dataclass
from types import new_class
from typing import TypeVar, cast

Built = TypeVar("Built")


@dataclass(frozen=True)
class Parts:
    """The classes of a subject's bugs, outermost first."""

    classes: tuple[type, ...] = ()

    def of(self, right: type[Built]) -> type[Built]:
        """Return `right`, preceded by the classes that derive from one of its base classes."""
        before = tuple(
            changed
            for changed in self.classes
            if any(base in right.__mro__ for base in changed.__mro__ if base is not object)
        )
        return cast(type[Built], new_class(right.__name__, (*before, right))) if before else right
