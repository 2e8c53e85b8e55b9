"""Downloads transformers, and prepares its process."""

import os

from paritybit.drive.adapters import Adapter
from paritybit.drive.environment import Environment, variables
from paritybit.drive.served import Common
from paritybit.drive.transformers.legs import TABLE
from paritybit.drive.transformers.settings import Served
from paritybit.engines import fetch
from paritybit.engines.packages import TRANSFORMERS


def prepare(spec: str) -> Environment:
    """Return the engine, with the packages it imports."""
    found, folder = fetch.find(spec), fetch.dependencies_folder() / TRANSFORMERS.dependencies[0]
    return Environment(found.name, found.package.parent, folder)


def variables_of(environment: Environment, served: Common) -> dict[str, str]:
    """Return the environment variables of the engine's process."""
    return variables(environment, served.device, os.environ)


ADAPTER = Adapter(TRANSFORMERS, TABLE, Served, prepare, variables_of)
