"""Serve generated requests to a whole vLLM in this process: `python -m paritybit.drive.vllm`.

The exit code is 0 if it has played for the requested time, and the engine was idle at the end.
"""

import importlib
import os

from paritybit.drive.playing import Drive, Engine, main
from paritybit.drive.vllm.settings import Served


def prepare(device: str) -> None:
    """Import the modules that do not depend on settings. The engine reads them at its import."""
    importlib.import_module("paritybit.drive.vllm.stand_ins")


def engine(served: Served) -> Engine:
    """Return the engine, with replacements for parts of it."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(served.runner - 1)
    from paritybit.drive.vllm import serving  # noqa: PLC0415
    from paritybit.drive.vllm.stand_ins import install_before_engine  # noqa: PLC0415

    install_before_engine(served)
    return serving.Engine(served)


if __name__ == "__main__":
    main(Drive(Served, prepare, engine))
