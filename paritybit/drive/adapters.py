"""The engines that paritybit serves, and what each of them provides."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from paritybit.drive import ENGINES
from paritybit.drive.configs import Table
from paritybit.drive.script import Setting
from paritybit.drive.served import Common
from paritybit.engines import fetch
from paritybit.engines.packages import SGLANG, Package
from paritybit.harness.errors import MalformedError, quote
from paritybit.places import IMPORT_FOLDER

PINS = Path(__file__).parent / "pins"
"""Requirements files with a hash for each file, one per release of transformers."""


@dataclass(frozen=True)
class Environment:
    """A whole engine on this machine: its name, its import folder, and those of dependencies."""

    name: str
    source: Path
    dependencies: tuple[Path, ...]


def pins_for(transformers: str | None) -> Path:
    """Return the requirements file for the newest transformers up to the wanted version.

    Returns the newest file for None, and the oldest one if all are newer.
    """
    files = sorted(PINS.glob("transformers-*.txt"), key=lambda file: fetch.in_order(file.stem))
    if transformers is None:
        return files[-1]
    wanted = fetch.in_order(transformers)
    return [files[0], *(file for file in files if fetch.in_order(file.stem) <= wanted)][-1]


def environment_of(found: fetch.EngineFolder, *names: str) -> Environment:
    """Return an engine with some folders of dependencies."""
    folders = tuple(fetch.dependencies_folder() / name for name in names)
    return Environment(found.name, found.package.parent, folders)


def with_transformers(
    spec: str, wanted: Callable[[Path], str | None] = lambda package: None
) -> Environment:
    """Return an engine with the pinned packages for the release of transformers that it wants.

    `wanted` returns this release for the folder of the engine's package. Raises as `fetch.find`
    does.
    """
    found = fetch.find(spec)
    pins = pins_for(wanted(found.package))
    fetch.install(pins.stem, pins)
    return environment_of(found, pins.stem, *fetch.package_of(spec).dependencies[1:])


def variables(
    environment: Environment, device: str, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables of an engine's process.

    Compiled Python files are cached, because compiling them takes longer than everything else.
    """
    own = {name: value for name, value in inherited.items() if name != "PYTHONDONTWRITEBYTECODE"}
    folders = (IMPORT_FOLDER, environment.source, *environment.dependencies)
    path = filter(None, (*map(str, folders), inherited.get("PYTHONPATH")))
    own["PYTHONPATH"] = os.pathsep.join(path)
    own["PYTHONPYCACHEPREFIX"] = str(fetch.dependencies_folder() / "pycache")
    own["PYTHONUNBUFFERED"] = "1"
    own.setdefault("PYTHONHASHSEED", "0")  # Sets of texts have the same order in a replay.
    if device == "cpu":
        own["TRITON_INTERPRET"] = "1"
        own["CUDA_VISIBLE_DEVICES"] = ""  # If it is not set, vLLM drops Triton without a GPU.
        own["OMP_NUM_THREADS"] = (
            "1"  # Tiny models gain nothing from threads, and a fork loses them.
        )
    return own


@dataclass
class Adapter:
    """What the process that starts an engine knows about it.

    - `table`, `settings`: the axes of its settings, and their class.
    - `prepare`: returns the engine of `NAME==VERSION` or of a folder, with the packages it imports.
      Raises MalformedError and CannotRunError as `fetch.find` does.
    - `own`: returns environment variables that only this engine needs. Raises CannotRunError for
      settings with which the engine cannot run.
    """

    package: Package
    table: Table
    settings: type[Common]
    prepare: Callable[[str], Environment]
    own: Callable[[Environment, Common], Mapping[str, str]] = lambda environment, served: {}

    @property
    def simple(self) -> Mapping[str, Setting]:
        """The simplest values of settings, in the order in which `shrink` tries them."""
        plain = self.settings().scope()
        return {name: plain[name] for name in self.settings.SIMPLIFIED}

    def variables(self, environment: Environment, served: Common) -> dict[str, str]:
        """Return the environment variables of the engine's process. Raises as `own` does."""
        own = self.own(environment, served)
        return {**own, **variables(environment, served.device, os.environ)}


def adapter(name: str) -> Adapter:
    """Return the adapter of an engine by its name. Raises KeyError for an unknown one."""
    if name not in ENGINES:
        raise KeyError(name)
    found: Adapter = import_module(f"paritybit.drive.{name}.adapter").ADAPTER
    return found


def adapter_of(spec: str) -> Adapter:
    """Return the adapter of the engine of `NAME==VERSION` or of a folder.

    Raises MalformedError as `fetch.package_of` does.
    """
    return adapter(fetch.package_of(spec).name)


def release_of(spec: str) -> tuple[Adapter, str]:
    """Return the adapter and the version of ENGINE==VERSION. VERSION alone is one of sglang.

    Raises MalformedError for an unknown engine, and for text that is not a version.
    """
    name, _, version = spec.rpartition("==")
    name = name or SGLANG.name
    if name not in ENGINES:
        raise MalformedError(f"{quote(name)} is not an engine; valid: {', '.join(ENGINES)}")
    found = adapter(name)
    fetch.require_release(version, found.package)
    return found, version
