"""The engines that paritybit serves, and what each of them provides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from paritybit.drive import ENGINES
from paritybit.drive.environment import Environment
from paritybit.drive.legs import Table
from paritybit.drive.script import Setting
from paritybit.drive.served import Common
from paritybit.engines import fetch
from paritybit.engines.packages import SGLANG, Package
from paritybit.harness.errors import MalformedError, quote


@dataclass
class Adapter:
    """What the process that starts an engine knows about it.

    - `table`: the axes of its settings.
    - `settings`: the class of its settings.
    - `prepare`: returns the engine of `NAME==VERSION` or of a folder, with the packages it imports.
      Raises MalformedError and CannotRunError as `fetch.find` does.
    - `variables`: returns the environment variables of the engine's process.
    """

    package: Package
    table: Table
    settings: type[Common]
    prepare: Callable[[str], Environment]
    variables: Callable[[Environment, Common], dict[str, str]]

    @property
    def simple(self) -> Mapping[str, Setting]:
        """The simplest values of settings, in the order in which `shrink` tries them."""
        plain = self.settings().scope()
        return {name: plain[name] for name in self.settings.SIMPLIFIED}


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
