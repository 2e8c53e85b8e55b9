"""Downloads transformers with its dependencies, and returns the command that starts it."""

import os
import sys
from collections.abc import Sequence

from paritybit.drive.environment import Environment, options, variables
from paritybit.drive.legs import Leg
from paritybit.drive.script import Script
from paritybit.engines import fetch
from paritybit.engines.packages import TRANSFORMERS

PROGRAM = (sys.executable, "-m", "paritybit.drive.transformers")


def prepare(spec: str) -> Environment:
    """Return the engine of `transformers==VERSION` or of a folder, with the packages it imports.

    Raises MalformedError and CannotRunError as `fetch.find` does.
    """
    found, folder = fetch.find(spec), fetch.dependencies_folder() / TRANSFORMERS.dependencies[0]
    return Environment(found.name, found.package.parent, folder)


def command(
    environment: Environment, leg: Leg, seed: int, device: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command that serves a row, and its environment variables."""
    words = options(leg, seed, device)
    return [*PROGRAM, *words], variables(environment, device, os.environ)


def playing(
    environment: Environment, script: Script, words: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command that serves a script, and its environment variables."""
    device = str(script.settings.get("device"))
    return [*PROGRAM, *words], variables(environment, device, os.environ)
