"""The engines that paritybit serves, and what each of them provides."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from paritybit.drive import ENGINES
from paritybit.engines import fetch
from paritybit.engines.packages import SGLANG, Package
from paritybit.harness.errors import MalformedError, quote

if TYPE_CHECKING:
    from paritybit.drive.engine import Engine
    from paritybit.drive.environment import Environment
    from paritybit.drive.legs import Table
    from paritybit.drive.script import Setting
    from paritybit.drive.served import Common


class Adapter(ABC):
    """Serves an engine. `prepare` and `variables` run outside of the engine's process.

    - `table`: the axes of its settings.
    - `settings`: the class of its settings.
    - `simple`: the simplest values of settings, in the order in which `shrink` tries them.
    """

    package: ClassVar[Package]
    table: ClassVar["Table"]
    settings: ClassVar["type[Common]"]
    simple: ClassVar["Mapping[str, Setting]"]

    @abstractmethod
    def prepare(self, spec: str) -> "Environment":
        """Return the engine of `NAME==VERSION` or of a folder, with the packages it imports.

        Raises MalformedError and CannotRunError as `fetch.find` does.
        """

    @abstractmethod
    def variables(self, environment: "Environment", served: "Common") -> dict[str, str]:
        """Return the environment variables of the engine's process."""

    @abstractmethod
    def install(self, device: str) -> None:
        """Replace parts of the engine that are missing on a device. On a CPU, also import it."""

    @abstractmethod
    def engine(self, served: "Common") -> "Engine":
        """Return the engine with some settings."""


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
