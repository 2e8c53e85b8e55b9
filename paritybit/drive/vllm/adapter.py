"""Downloads vLLM, and prepares its process."""

import os

from paritybit.drive.adapters import Adapter
from paritybit.drive.environment import Environment, variables, with_transformers
from paritybit.drive.served import Common
from paritybit.drive.vllm.legs import TABLE
from paritybit.drive.vllm.settings import Served
from paritybit.engines.packages import VLLM
from paritybit.harness.errors import CannotRunError


def prepare(spec: str) -> Environment:
    """Return the engine, with the newest pinned release of transformers."""
    return with_transformers(spec, lambda package: None)


def variables_of(environment: Environment, served: Common) -> dict[str, str]:
    """Return the environment variables of the engine's process.

    Raises CannotRunError for a GPU if the engine has no compiled code, like downloaded ones.
    """
    compiled = (environment.source / VLLM.name).glob("_C*.so")
    if served.device != "cpu" and not any(compiled):
        raise CannotRunError(
            f"{environment.name} has no compiled code, which a GPU needs; give the folder in "
            "which it is installed"
        )
    own = variables(environment, served.device, os.environ)
    beside = environment.dependencies.with_name(VLLM.dependencies[-1])
    own["PYTHONPATH"] += os.pathsep + str(beside)
    return own


ADAPTER = Adapter(VLLM, TABLE, Served, prepare, variables_of)
