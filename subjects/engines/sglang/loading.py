"""Loading an engine: one release, or one source tree, into this process.

An engine's package is entered without its front end, and what its buffers, pool and
runners never call is stubbed. The list of stubs is fixed, whatever is loaded.
"""

import importlib
import inspect
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

PACKAGE = "sglang"

STUBS = (
    "IPython",
    "compressed_tensors",
    "gguf",
    "huggingface_hub",
    "openai",
    "partial_json_parser",
    "safetensors",
    "sglang.srt.configs",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.tp_worker",
    "sglang.srt.server_args",
    "torchvision",
    "transformers",
    "tvm_ffi",
)
"""Modules that are empty stand-ins: models, tokenizers, the command line, compiled extras."""


STUBS_ON_CUDA = ("sgl_kernel",)
"""Stubbed on a GPU besides: compiled kernels for layers that our model does not have."""

OPERATORS_ON_CUDA = ("moe_fused_gate",)
"""Operators of that module that an engine's import wants to exist; they never run."""

ANSWERS_ON_CUDA: dict[str, dict[str, Any]] = {
    "sgl_kernel.utils": {"is_arch_support_pdl": lambda: False},
}
"""What stubbed functions answer on a GPU: no programmatic dependent launch."""

ABSENT = ("tvm_ffi.cpp",)
"""What must not be found below a stub: a compiler, without which an engine takes torch's way."""


class PartMissingError(Exception):
    """The engine has no part of a name that is looked for, or the part does not work here."""


class Stand(ABCMeta):
    """The type of stand-ins: any attribute of one is another, and it lists nothing.

    An abstract base may stand beside one.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class Anything(metaclass=Stand):
    """What stand-ins descend from: takes any arguments, and any value as a pydantic field."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Give back the first argument, as a decorator that does nothing."""
        return arguments[0] if arguments else self

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__()

    @classmethod
    def register(cls, *arguments: Any, **named: Any) -> None:
        """Register nothing, where an abstract base would register a class."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> dict[str, Any]:
        return {"type": "any"}


def stand_in(name: str) -> Stand:
    """Return a class of that name that can be called, subclassed and asked for anything."""
    return Stand(name, (Anything,), {})


class StubModule(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = stand_in(name)
        setattr(self, name, made)
        return made


class StubFinder(MetaPathFinder, Loader):
    """Finds stubs of the given names, and notes which were asked for."""

    def __init__(self, names: tuple[str, ...] = STUBS) -> None:
        self.names = names
        self.used: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a stub, for a name on the list or below one."""
        if fullname in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        root = next((name for name in self.names if f"{fullname}.".startswith(f"{name}.")), None)
        if root is None:
            return None
        self.used.add(root)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return an empty stub."""
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the stub empty."""


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
        self.stubs = StubFinder(STUBS if device == "cpu" else STUBS + STUBS_ON_CUDA)
        if device != "cpu":
            self.operators = torch.library.Library("sgl_kernel", "FRAGMENT")
            for name in OPERATORS_ON_CUDA:
                self.operators.define(f"{name}(Tensor values) -> Tensor")
        self.modules: list[str] = []
        sys.meta_path.insert(0, self.stubs)
        sys.path.append(str(dependencies))
        for module, answers in (ANSWERS_ON_CUDA if device != "cpu" else {}).items():
            for name, answer in answers.items():
                setattr(importlib.import_module(module), name, answer)
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
