"""Fetches a whole transformers and what it imports, and says how it is started."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from paritybit.drive.environment import Environment, variables
from paritybit.drive.legs import Leg
from paritybit.drive.script import Script
from paritybit.drive.transformers import PACKAGE
from paritybit.engines import fetch
from paritybit.engines.loading import folder_of_package

PROGRAM = (sys.executable, "-m", "paritybit.drive.transformers")

PINS = Path(__file__).with_name("pins.txt")
"""A requirements file with a hash for each file."""

DEPENDENCIES = "continuous-batching"
"""The folder of what they install."""


def prepare(spec: str) -> Environment:
    """Return the engine of `transformers==VERSION` or of a folder, fetched with what it imports.

    Raises MalformedError and CannotRunError as `fetch.fetch` does.
    """
    named = re.fullmatch(rf"{PACKAGE.name}==({fetch.VERSION})", spec)
    if named is not None:
        found = fetch.fetch(named[1], PACKAGE)
        name, package = found.name, found.package
    else:
        home = folder_of_package(Path(spec), PACKAGE.name, PACKAGE.marker)
        assert home is not None
        name, package = f"{PACKAGE.name} in {Path(spec).name or spec}", home.resolve()
    fetch.install(DEPENDENCIES, PINS)
    return Environment(name, package.parent, fetch.dependencies_folder() / DEPENDENCIES)


def command(
    environment: Environment, leg: Leg, model: str, seed: int, device: str
) -> tuple[list[str], dict[str, str]]:
    """Return the words that serve an engine in one way, and the variables of their process."""
    words = ["--model", model, "--device", device, "--seed", str(seed)]
    words += ["--seconds", f"{leg.seconds:g}", *leg.arguments]
    return [*PROGRAM, *words], variables(environment, device, os.environ)


def playing(
    environment: Environment, script: Script, words: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the words that serve an engine a script that lies in a file, as `words` say."""
    device = str(script.settings.get("device"))
    return [*PROGRAM, *words], variables(environment, device, os.environ)
