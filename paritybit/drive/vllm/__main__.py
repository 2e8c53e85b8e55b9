"""Serve generated requests to a whole vLLM in this process: `python -m paritybit.drive.vllm`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import importlib
import os

from paritybit.drive.playing import Drive, Engine, main, parser_of
from paritybit.drive.vllm.settings import Served


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    return parser_of("paritybit.drive.vllm", Served)


def prepare(device: str) -> None:
    """Import what the engine imports with any settings. It reads others as it is imported."""
    importlib.import_module("paritybit.drive.vllm.stand_ins")


def engine(served: Served) -> Engine:
    """Return the engine, with what stands in for parts of it."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(served.runner - 1)
    from paritybit.drive.vllm import serving  # noqa: PLC0415
    from paritybit.drive.vllm.stand_ins import install_before_engine  # noqa: PLC0415

    install_before_engine(served)
    return serving.Engine(served)


if __name__ == "__main__":
    main(parser(), Drive(Served, prepare, engine))
