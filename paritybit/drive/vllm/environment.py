"""Downloads vLLM with its dependencies, and returns the command that starts it.

Runs outside of the engine's process.
"""

import os
import sys
from collections.abc import Sequence

from paritybit.drive.environment import Environment, options, with_transformers
from paritybit.drive.environment import variables as variables_of
from paritybit.drive.legs import Leg
from paritybit.drive.script import Script
from paritybit.engines.packages import VLLM
from paritybit.harness.errors import CannotRunError

PROGRAM = (sys.executable, "-m", "paritybit.drive.vllm")


def prepare(spec: str) -> Environment:
    """Return the engine of `vllm==VERSION` or of a folder, with the packages it imports."""
    return with_transformers(spec, lambda package: None)


def command(
    environment: Environment, leg: Leg, seed: int, device: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command that serves a row, and its environment variables.

    Raises CannotRunError for a GPU if the engine has no compiled code, like downloaded engines.
    """
    if device != "cpu" and not any((environment.source / VLLM.name).glob("_C*.so")):
        raise CannotRunError(
            f"{environment.name} has no compiled code, which a GPU needs; give the folder in which "
            "it is installed"
        )
    return [*PROGRAM, *options(leg, seed, device)], variables(environment, device)


def playing(
    environment: Environment, script: Script, words: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command that serves a script, and its environment variables."""
    return [*PROGRAM, *words], variables(environment, str(script.settings.get("device")))


def variables(environment: Environment, device: str) -> dict[str, str]:
    """Return the environment variables of an engine's process."""
    own = variables_of(environment, device, os.environ)
    beside = environment.dependencies.with_name(VLLM.dependencies[-1])
    own["PYTHONPATH"] += os.pathsep + str(beside)
    return own
