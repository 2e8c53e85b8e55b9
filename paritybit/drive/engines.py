"""The engines that `watch --engine` drives: a table."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paritybit.drive import environment as sglang
from paritybit.drive import legs as sglang_legs
from paritybit.drive import settings
from paritybit.drive.environment import Environment
from paritybit.drive.legs import Leg
from paritybit.drive.script import Script, Setting
from paritybit.drive.transformers import environment as transformers
from paritybit.drive.transformers import legs as transformers_legs
from paritybit.drive.transformers import settings as transformers_settings
from paritybit.drive.vllm import environment as vllm
from paritybit.drive.vllm import legs as vllm_legs
from paritybit.drive.vllm import settings as vllm_settings
from paritybit.harness.engines import fetch
from paritybit.harness.engines.adapters.packages import SGLANG, VLLM, Package
from paritybit.harness.errors import MalformedError, quoted
from paritybit.subjects.engines.shared.loading import folder_of_package


class Starter(Protocol):
    """How an engine is fetched and started."""

    def prepare(self, spec: str) -> Environment:
        """Return the engine of `NAME==VERSION` or of a folder, fetched with what it imports."""

    def command(
        self, environment: Environment, leg: Leg, model: str, seed: int, device: str
    ) -> tuple[list[str], dict[str, str]]:
        """Return the words that serve an engine, and the variables of their process."""

    def playing(
        self, environment: Environment, script: Script, words: Sequence[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the words that serve an engine a script, and the variables of their process."""


class Served(Protocol):
    """The settings of an engine."""

    @classmethod
    def of(cls, settings: Mapping[str, Setting]) -> "Served":
        """Return what a script's settings say. Raises ValueError for any that there is not."""


@dataclass(frozen=True)
class Driven:
    """An engine that is driven: its package, how it is started, and what it is served with.

    `served` is the kind of its settings, and `simple` has the simplest values of some. If it is
    `imported` by others, a folder that has another engine, too, is that one's.
    """

    package: Package
    starter: Starter
    legs: Sequence[Leg]
    served: type[Served]
    simple: Mapping[str, Setting]
    imported: bool = False

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
    Driven(SGLANG, sglang, sglang_legs.LEGS, settings.Served, settings.SIMPLE),
    Driven(
        *(transformers.PACKAGE, transformers, transformers_legs.LEGS),
        *(transformers_settings.Served, transformers_settings.SIMPLE),
        imported=True,
    ),
    Driven(VLLM, vllm, vllm_legs.LEGS, vllm_settings.Served, vllm_settings.SIMPLE),
)


def driven(spec: str) -> Driven:
    """Return the engine that is asked for. Raises MalformedError for one that is not driven."""
    every = [one for one in DRIVEN if one.is_meant_by(spec)]
    found = [one for one in every if not one.imported] or every
    names = " and ".join(one.package.name for one in DRIVEN)
    if len(found) == 1:
        return found[0]
    if found:
        raise MalformedError(f"{quoted(spec)} contains the source of several engines")
    package = fetch.package_of(spec)
    raise MalformedError(
        f"watch --engine drives {names} only, and {quoted(spec)} is {package.name}"
    )
