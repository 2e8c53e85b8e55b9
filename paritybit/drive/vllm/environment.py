"""Fetches a whole vLLM and what it imports, and says how it is started. Runs outside of it."""

import os
import sys

from paritybit.drive.environment import Environment, pins_for
from paritybit.drive.environment import variables as variables_of
from paritybit.drive.legs import Leg
from paritybit.harness.engines import fetch
from paritybit.harness.engines.adapters.packages import VLLM
from paritybit.harness.errors import MalformedError, quoted


def prepare(spec: str) -> Environment:
    """Return the engine of `vllm==VERSION` or of a folder, fetched with what it imports.

    Raises MalformedError and CannotRunError as `fetch.find` does, and MalformedError for another
    engine.
    """
    package = fetch.package_of(spec)
    if package is not VLLM:
        raise MalformedError(f"{quoted(spec)} is {package.name}, not {VLLM.name}")
    found = fetch.find(spec)
    pins = pins_for(None)
    fetch.install(pins.stem, pins)
    return Environment(found.name, found.package.parent, fetch.dependencies_folder() / pins.stem)


def command(
    environment: Environment, leg: Leg, model: str, seed: int, device: str
) -> tuple[list[str], dict[str, str]]:
    """Return the words that serve an engine in one way, and the variables of their process."""
    words = [
        *(sys.executable, "-m", "paritybit.drive.vllm"),
        *("--model", model, "--device", device, "--seed", str(seed)),
        *("--seconds", f"{leg.seconds:g}"),
        *leg.arguments,
    ]
    variables = variables_of(environment, device, os.environ)
    beside = environment.dependencies.with_name(VLLM.dependencies[-1])
    variables["PYTHONPATH"] += os.pathsep + str(beside)
    return words, variables
