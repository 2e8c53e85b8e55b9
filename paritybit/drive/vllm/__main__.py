"""Serve generated requests to a whole vLLM in this process: `python -m paritybit.drive.vllm`.

Ends with 0 when it has played for as long as asked, and the engine was idle at the end.
"""

import argparse
import importlib
import os

from paritybit.drive.playing import Drive, Engine, add_play_options, main
from paritybit.drive.served import DEVICES
from paritybit.drive.vllm.settings import BACKENDS, GRAPHS, SPECULATION, Served


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="python -m paritybit.drive.vllm")
    add_play_options(made, DEVICES, page_size=16)
    made.add_argument("--whole-prompts", action="store_true")
    made.add_argument("--graphs", choices=tuple(GRAPHS), default="decode")
    made.add_argument("--runner", type=int, choices=(1, 2), default=1)
    made.add_argument("--speculative", choices=tuple(SPECULATION))
    made.add_argument("--backend", choices=tuple(BACKENDS), default="triton")
    return made


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
