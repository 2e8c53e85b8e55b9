"""The table of engines that `watch --engine` serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from paritybit.engines import fetch
from paritybit.engines.packages import SGLANG, TRANSFORMERS, VLLM, Package
from paritybit.harness.errors import MalformedError, quoted

if TYPE_CHECKING:
    from paritybit.drive.environment import Environment
    from paritybit.drive.legs import Leg, Table
    from paritybit.drive.script import Script, Setting
    from paritybit.drive.served import Common


class Starter(Protocol):
    """Downloads and starts an engine."""

    def prepare(self, spec: str) -> "Environment":
        """Return the engine of `NAME==VERSION` or of a folder, with the packages it imports."""

    def command(
        self, environment: "Environment", leg: "Leg", seed: int, device: str
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command that serves a row, and its environment variables."""

    def playing(
        self, environment: "Environment", script: "Script", words: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command that serves a script, and its environment variables."""


@dataclass(frozen=True)
class Driven:
    """An engine, and the package of paritybit that serves it.

    The modules of that package are imported when they are needed.
    """

    package: Package
    place: str

    def _module(self, name: str) -> Any:
        return import_module(f"{self.place}.{name}")

    @property
    def starter(self) -> Starter:
        """The module that downloads and starts the engine."""
        starter: Starter = self._module("environment")
        return starter

    @property
    def table(self) -> "Table":
        """The settings with which the engine is served, and how they combine."""
        table: Table = self._module("legs").TABLE
        return table

    @property
    def served(self) -> "type[Common]":
        """The class of its settings."""
        served: type[Common] = self._module("settings").Served
        return served

    @property
    def simple(self) -> "Mapping[str, Setting]":
        """The simplest values of some settings."""
        simple: Mapping[str, Setting] = self._module("settings").SIMPLE
        return simple


DRIVEN = (
    Driven(SGLANG, "paritybit.drive.sglang"),
    Driven(TRANSFORMERS, "paritybit.drive.transformers"),
    Driven(VLLM, "paritybit.drive.vllm"),
)
BY_NAME = {one.package.name: one for one in DRIVEN}


def driven(spec: str) -> Driven:
    """Return the engine of `NAME==VERSION` or of a folder.

    Raises MalformedError as `fetch.package_of` does.
    """
    return BY_NAME[fetch.package_of(spec).name]


def released(spec: str) -> tuple[Driven, str]:
    """Return the engine and the version of ENGINE==VERSION. VERSION alone is a release of sglang.

    Raises MalformedError for an unknown engine, and for text that is not a version.
    """
    name, _, version = spec.rpartition("==")
    one = BY_NAME.get(name or SGLANG.name)
    if one is None:
        raise MalformedError(f"{quoted(name)} is not an engine; valid: {', '.join(BY_NAME)}")
    fetch.require_release(version, one.package)
    return one, version
