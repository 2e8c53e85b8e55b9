"""Downloads transformers, and starts its continuous batching."""

import os

from paritybit.drive.adapters import Adapter
from paritybit.drive.engine import Engine
from paritybit.drive.environment import Environment, variables
from paritybit.drive.served import Common
from paritybit.drive.transformers.legs import TABLE
from paritybit.drive.transformers.settings import SIMPLE, Served
from paritybit.engines import fetch
from paritybit.engines.packages import TRANSFORMERS


class Transformers(Adapter):
    """Serves continuous batching."""

    package, table, settings, simple = TRANSFORMERS, TABLE, Served, SIMPLE

    def prepare(self, spec: str) -> Environment:
        """Return the engine, with the packages it imports."""
        found, folder = fetch.find(spec), fetch.dependencies_folder() / TRANSFORMERS.dependencies[0]
        return Environment(found.name, found.package.parent, folder)

    def variables(self, environment: Environment, served: Common) -> dict[str, str]:
        """Return the environment variables of the engine's process."""
        return variables(environment, served.device, os.environ)

    def install(self, device: str) -> None:
        """Replace parts of the engine, and import it."""
        from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
        from paritybit.drive.transformers.stand_ins import ON_A_CPU  # noqa: PLC0415

        install(device, (), ON_A_CPU)

    def engine(self, served: Common) -> Engine:
        """Return the engine."""
        from paritybit.drive.transformers.serving import (  # noqa: PLC0415
            Transformers as Serving,
        )

        assert isinstance(served, Served)
        return Serving(served)


ADAPTER = Transformers()
