"""Loading an engine: one release, or one source tree, into this process.

An engine's package is entered without its front end, and what its buffers, pool and
runners never call is stubbed. The list of stubs is fixed, whatever is loaded.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from subjects.engines.sglang.host.missing import PartMissingError
from subjects.engines.sglang.host.stubs import StubFinder

__all__ = ["PACKAGE", "Engine", "PartMissingError", "message", "named", "package_folder"]

PACKAGE = "sglang"

OPERATORS_ON_CUDA = ("moe_fused_gate",)
"""Operators of `sgl_kernel` that an engine's import wants to exist; they never run."""


def package_folder(engine: Path) -> Path | None:
    """Return the engine's package within an unpacked wheel or a source checkout, if it is one."""
    for folder in (engine / PACKAGE, engine / "python" / PACKAGE):
        if (folder / "srt").is_dir():
            return folder
    return None


class Engine:
    """The engine's modules, by import. One per process: its package has one name.

    `dependencies` is a folder of what the engine imports besides torch.
    """

    def __init__(self, package: Path, dependencies: Path, device: str = "cpu") -> None:
        self.stubs = StubFinder()
        if device != "cpu":
            self.operators = torch.library.Library("sgl_kernel", "FRAGMENT")
            for name in OPERATORS_ON_CUDA:
                self.operators.define(f"{name}(Tensor values) -> Tensor")
        self.modules: list[str] = []
        sys.meta_path.insert(0, self.stubs)
        sys.path.append(str(dependencies))
        bare = ModuleType(PACKAGE)
        bare.__path__ = [str(package)]
        sys.modules[PACKAGE] = bare

    def module(self, name: str) -> ModuleType:
        """Return the module `name` of the engine. Raises PartMissingError where it has none."""
        full = f"{PACKAGE}.{name}"
        try:
            found = importlib.import_module(full)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{full}.".startswith(f"{error.name}."):
                raise PartMissingError(f"the engine has no module {name}") from error
            raise PartMissingError(f"{name} cannot be imported: {message(error)}") from error
        except Exception as error:  # An engine's import may fail in any way.
            raise PartMissingError(f"{name} cannot be imported: {message(error)}") from error
        self.modules.append(name)
        return found

    def part(self, *places: str) -> Any:
        """Return the first part that exists of `places`, each as module:name."""
        for place in places:
            module, _, name = place.partition(":")
            try:
                return getattr(self.module(module), name)
            except AttributeError:
                continue
            except PartMissingError as error:
                if "cannot be imported" in str(error):
                    raise
        raise PartMissingError(f"the engine has none of {', '.join(places)}")

    def fill(self, module: str, values: Mapping[str, Any]) -> None:
        """Set names of a module."""
        loaded = self.module(module)
        for name, value in values.items():
            setattr(loaded, name, value)


def named(made: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    """Return `made` with those of the arguments given that its signature names."""
    known = inspect.signature(made).parameters
    return partial(made, **{name: value for name, value in arguments.items() if name in known})


def message(error: BaseException) -> str:
    """Return an error in one line."""
    lines = str(error).strip().splitlines()
    if isinstance(error, PartMissingError):
        return lines[0]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
