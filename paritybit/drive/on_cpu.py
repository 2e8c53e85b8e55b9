"""Run Python where a whole engine starts without a GPU.

`python -m paritybit.drive.on_cpu ENGINE FILE` runs FILE as Python does, in a process that begins by
installing what stands in for compiled code and CUDA graphs. So does each process that it starts.
Any other words that Python takes, such as `-m unittest FILE`, may stand in place of FILE. What runs
need not know of paritybit: its environment has `TEST_DEVICE=cpu`.
"""

import asyncio
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from paritybit.places import IMPORT_FOLDER
from paritybit.watch.attach import when_imported

VARIABLE = "PARITYBIT_ON_CPU"
"""Names the engine, in the processes that begin with its stand-ins."""

SITECUSTOMIZE = """\
from paritybit.drive.on_cpu import begin

begin()
"""


def stand_in_for_sglang() -> None:
    """Install what sglang needs on a CPU."""
    from paritybit.drive.sglang.__main__ import stand_in  # noqa: PLC0415
    from paritybit.drive.stand_ins.installing import put  # noqa: PLC0415
    from paritybit.drive.stand_ins.table import RUNNER_OF_CUDA  # noqa: PLC0415

    if importlib.util.find_spec("uvloop") is None:  # The server's loop; it has no part in serving.
        module: Any = ModuleType("uvloop")
        module.EventLoopPolicy = asyncio.DefaultEventLoopPolicy
        sys.modules["uvloop"] = module
    stand_in("cpu")
    put((RUNNER_OF_CUDA,))


def stand_in_for_transformers() -> None:
    """Install what continuous batching needs on a CPU."""
    from paritybit.drive.transformers.__main__ import prepare  # noqa: PLC0415

    prepare("cpu")


def stand_in_for_vllm() -> None:
    """Install what vLLM needs on a CPU: a part of it once the engine has imported its own."""
    from paritybit.drive.vllm.settings import Served  # noqa: PLC0415
    from paritybit.drive.vllm.stand_ins import (  # noqa: PLC0415
        ATTENTION,
        SAMPLER,
        install_before_engine,
        stand_in_for_attention,
        stand_in_for_sampling,
    )

    install_before_engine(Served())
    when_imported(ATTENTION, stand_in_for_attention)
    when_imported(SAMPLER, stand_in_for_sampling)
    when_imported(REGISTRY, inspect_models_here)


REGISTRY = "vllm.model_executor.models.registry"


def inspect_models_here() -> None:
    """Let vLLM inspect a model's class in this process: another one would lack the stand-ins."""
    registry: Any = importlib.import_module(REGISTRY)
    registry._run_in_subprocess = lambda inspect: inspect()


STAND_INS: Mapping[str, Callable[[], None]] = {
    "sglang": stand_in_for_sglang,
    "transformers": stand_in_for_transformers,
    "vllm": stand_in_for_vllm,
}


def begin() -> None:
    """Install the stand-ins of the engine that the environment names."""
    STAND_INS[os.environ[VARIABLE]]()


def main(words: Sequence[str]) -> int:
    """Run Python with some words, after the stand-ins of an engine; return its exit code."""
    engine, *asked = words or [""]
    if engine not in STAND_INS or not asked:
        engines = "|".join(STAND_INS)
        sys.stderr.write(f"usage: python -m paritybit.drive.on_cpu {engines} FILE\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="paritybit-") as folder:
        Path(folder, "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
        path = [folder, str(IMPORT_FOLDER), os.environ.get("PYTHONPATH", "")]
        own = {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "TRITON_INTERPRET": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TEST_DEVICE": "cpu",
            VARIABLE: engine,
        }
        done = subprocess.run([sys.executable, *asked], env={**os.environ, **own}, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
