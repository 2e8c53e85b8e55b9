"""Downloads vLLM, and starts it."""

import importlib
import os

from paritybit.drive.adapters import Adapter
from paritybit.drive.engine import Engine
from paritybit.drive.environment import Environment, variables, with_transformers
from paritybit.drive.served import Common
from paritybit.drive.vllm.legs import TABLE
from paritybit.drive.vllm.settings import SIMPLE, Served
from paritybit.engines.packages import VLLM
from paritybit.harness.errors import CannotRunError


class Vllm(Adapter):
    """Serves the engine core of vLLM."""

    package, table, settings, simple = VLLM, TABLE, Served, SIMPLE

    def prepare(self, spec: str) -> Environment:
        """Return the engine, with the newest pinned release of transformers."""
        return with_transformers(spec, lambda package: None)

    def variables(self, environment: Environment, served: Common) -> dict[str, str]:
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

    def install(self, device: str) -> None:
        """Import what does not depend on settings. The engine reads them when it is imported."""
        importlib.import_module("paritybit.drive.vllm.stand_ins")

    def engine(self, served: Common) -> Engine:
        """Return the engine, with replacements for parts of it."""
        assert isinstance(served, Served)
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(served.runner - 1)
        from paritybit.drive.vllm.serving import Vllm as Serving  # noqa: PLC0415
        from paritybit.drive.vllm.stand_ins import install_before_engine  # noqa: PLC0415

        install_before_engine(served)
        return Serving(served)


ADAPTER = Vllm()
