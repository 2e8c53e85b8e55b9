"""Stand-ins for modules and objects that an engine imports or reads, but does not use here.

During an import, a stand-in can be called, compared, listed, tested and subclassed, and has every
attribute. Later, this raises StandInUsedError. Names that the engine uses are declared as answers.
"""

import importlib
import sys
from abc import ABCMeta
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, MappingProxyType, ModuleType
from typing import Any


class PartMissingError(Exception):
    """The engine lacks a part, or the part does not work here."""


class UndeclaredError(PartMissingError, AttributeError):
    """The engine read an undeclared name. `getattr` with a default and `hasattr` work as usual."""


class StandInUsedError(PartMissingError):
    """The engine used a stand-in outside of an import."""


class Bag:
    """An object with declared values. Any other name raises UndeclaredError."""

    def __init__(self, values: Mapping[str, Any], label: str) -> None:
        self.__dict__.update(values)
        self._label = label

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UndeclaredError(f"the engine reads {self._label}.{name}, which is not declared")


class Stand(ABCMeta):
    """The type of stand-ins: any attribute of one is another."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(cls.__module__, f"{cls.__qualname__}.{name}")

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        """Return an instance."""
        only_imported(cls, "called")
        return super().__call__(*arguments, **named)

    def __eq__(cls, other: object) -> bool:
        if cls is not other:
            only_imported(cls, "compared something with")
        return cls is other

    def __hash__(cls) -> int:
        return super().__hash__()

    def __bool__(cls) -> bool:
        only_imported(cls, "asked for the truth of")
        return True

    def __iter__(cls) -> Iterator[Any]:
        only_imported(cls, "listed")
        return iter(())


class Anything(metaclass=Stand):
    """The base class of stand-ins. Accepts any arguments, and any value as a pydantic field."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return the first argument, as a decorator does."""
        only_imported(type(self), "called")
        return arguments[0] if arguments else self

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__()

    @classmethod
    def register(cls, *arguments: Any, **named: Any) -> None:
        """Register nothing."""
        only_imported(cls, "called")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> dict[str, Any]:
        return {"type": "any"}


def stand_in(module: str, name: str) -> Stand:
    """Return a stand-in: a class with this module and name."""
    named = {"__module__": module, "__qualname__": name}
    return Stand(name.rpartition(".")[2], (Anything,), named)


def only_imported(used: Stand, how: str) -> None:
    """Raise StandInUsedError unless a module is being imported."""
    if not importing():
        name = f"{used.__module__}.{used.__qualname__}"
        raise StandInUsedError(f"the engine {how} {name}, which is a stub")


def importing() -> bool:
    """Return whether the import machinery is a closer caller than paritybit itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        names = frame.f_globals
        if names is vars(importlib._bootstrap):
            return True
        if names is not globals() and names.get("__package__") == __package__:
            return False
        frame = frame.f_back
    return False


class StubModule(ModuleType):
    """A module that has every name: each is a stand-in."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = stand_in(self.__name__, name)
        setattr(self, name, made)
        return made


class StubFinder(MetaPathFinder, Loader):
    """Finds stubs for `names` and the modules below them, except for those in `absent`.

    `answers` has, by module, the values of names that the engine uses.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        absent: tuple[str, ...] = (),
        answers: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self.names = names
        self.absent = absent
        self.answers = answers

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a stub, if there is one."""
        if fullname in self.absent:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        if not any(f"{fullname}.".startswith(f"{name}.") for name in self.names):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return an empty stub."""
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Set the declared names of the stub."""
        vars(module).update(self.answers.get(module.__name__, {}))
