"""Loads an engine into this process. Stubs replace modules that it imports and does not use."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from paritybit.engines.stubs import PartMissingError, StubFinder


class EngineModules:
    """Imports the modules of an engine, whose own `__init__` does not run. One per process.

    `dependencies` are folders with the packages that the engine imports.
    """

    def __init__(
        self, name: str, package: Path, dependencies: Sequence[Path], stubs: StubFinder
    ) -> None:
        self.name = name
        sys.meta_path.insert(0, stubs)
        sys.path.extend(map(str, dependencies))
        bare = ModuleType(name)
        bare.__path__ = [str(package)]
        sys.modules[name] = bare

    def module(self, name: str) -> ModuleType:
        """Return a module of the engine. Raises PartMissingError if it cannot be imported."""
        full = f"{self.name}.{name}"
        try:
            return importlib.import_module(full)
        except Exception as error:  # An engine's import may fail in any way.
            raise PartMissingError(f"{name} cannot be imported: {message(error)}") from error

    def part(self, place: str) -> Any:
        """Return the object at `place`, written as module:name. Raises PartMissingError."""
        module, _, name = place.partition(":")
        try:
            return getattr(self.module(module), name)
        except AttributeError as error:
            raise PartMissingError(f"the engine has no {place}") from error


def named(made: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    """Return `made` with those of the arguments that are in its signature."""
    known = inspect.signature(made).parameters
    return partial(made, **{name: value for name, value in arguments.items() if name in known})


def message(error: BaseException) -> str:
    """Return an error in one line, with its place."""
    lines = str(error).strip().splitlines()
    if isinstance(error, PartMissingError):
        return lines[0]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return text
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
