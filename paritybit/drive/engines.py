"""The engines that `watch --engine` drives: a table."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paritybit.drive import transformers
from paritybit.engines import fetch
from paritybit.engines.loading import folder_of_package
from paritybit.engines.packages import SGLANG, VLLM, Package
from paritybit.harness.errors import MalformedError, quoted

if TYPE_CHECKING:
    from paritybit.drive.environment import Environment
    from paritybit.drive.legs import Leg
    from paritybit.drive.script import Script, Setting
    from paritybit.drive.served import Common


class Starter(Protocol):
    """How an engine is fetched and started."""

    def prepare(self, spec: str) -> "Environment":
        """Return the engine of `NAME==VERSION` or of a folder, fetched with what it imports."""

    def command(
        self, environment: "Environment", leg: "Leg", model: str, seed: int, device: str
    ) -> tuple[list[str], dict[str, str]]:
        """Return the words that serve an engine, and the variables of their process."""

    def playing(
        self, environment: "Environment", script: "Script", words: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the words that serve an engine a script, and the variables of their process."""


@dataclass(frozen=True)
class Driven:
    """An engine that is driven: its package, and the package of ours that drives it.

    Its modules are imported when they are needed. `oldest` is the first release that is driven. If
    it is `imported` by others, a folder that has another engine, too, is that one's.
    """

    package: Package
    place: str
    oldest: str
    imported: bool = False

    def _module(self, name: str) -> Any:
        return import_module(f"{self.place}.{name}")

    @property
    def starter(self) -> Starter:
        """How it is fetched and started."""
        starter: Starter = self._module("environment")
        return starter

    @property
    def legs(self) -> "Sequence[Leg]":
        """The settings that it is served with by default."""
        legs: Sequence[Leg] = self._module("legs").LEGS
        return legs

    @property
    def served(self) -> "type[Common]":
        """The kind of its settings."""
        served: type[Common] = self._module("settings").Served
        return served

    @property
    def simple(self) -> "Mapping[str, Setting]":
        """The simplest values of some settings."""
        simple: Mapping[str, Setting] = self._module("settings").SIMPLE
        return simple

    def is_meant_by(self, spec: str) -> bool:
        """Whether `NAME==VERSION` or a folder is this engine."""
        package = self.package
        if re.fullmatch(rf"{package.name}=={fetch.VERSION}", spec) is not None:
            return True
        try:
            return folder_of_package(Path(spec), package.name, package.marker) is not None
        except (OSError, ValueError):  # It cannot be a path at all.
            return False


DRIVEN = (
    Driven(SGLANG, "paritybit.drive.sglang", SGLANG.oldest),
    Driven(transformers.PACKAGE, transformers.__name__, "5.19.0", imported=True),
    Driven(VLLM, "paritybit.drive.vllm", "0.28.0"),
)
BY_NAME = {one.package.name: one for one in DRIVEN}


def driven(spec: str) -> Driven:
    """Return the engine that is asked for. Raises MalformedError for one that is not driven."""
    every = [one for one in DRIVEN if one.is_meant_by(spec)]
    found = [one for one in every if not one.imported] or every
    if len(found) == 1:
        return found[0]
    if found:
        raise MalformedError(f"{quoted(spec)} contains the source of several engines")
    names = ", ".join(f"{one.package.name}==VERSION" for one in DRIVEN)
    raise MalformedError(
        f"{quoted(spec)} is not an engine; expected one of {names}, or a folder with its source"
    )


def released(spec: str) -> tuple[Driven, str]:
    """Return the engine and the version of ENGINE==VERSION; VERSION alone is one of sglang.

    Raises MalformedError for an engine that there is not, and for what is no version.
    """
    name, _, version = spec.rpartition("==")
    one = BY_NAME.get(name or SGLANG.name)
    if one is None:
        raise MalformedError(f"{quoted(name)} is not an engine; valid: {', '.join(BY_NAME)}")
    fetch.require_release(version, one.package)
    return one, version
