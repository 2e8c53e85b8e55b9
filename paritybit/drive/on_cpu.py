"""Run Python so that a whole engine starts without a GPU.

`python -m paritybit.drive.on_cpu ENGINE FILE` runs FILE with Python. The process, and each process
that it starts, first installs replacements for compiled code and CUDA graphs. In place of FILE, any
other arguments of Python are possible, such as `-m unittest FILE`. The program need not know
paritybit. Its environment has `TEST_DEVICE=cpu`.
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
from paritybit.watch.attach import sitecustomize, when_imported

VARIABLE = "PARITYBIT_ON_CPU"
"""The variable with the name of the engine whose replacements a process installs."""

SITECUSTOMIZE = sitecustomize("from paritybit.drive.on_cpu import begin\n\nbegin()\n")


def stand_in_for_sglang() -> None:
    """Install the replacements that sglang needs on a CPU."""
    from paritybit.drive.sglang.__main__ import stand_in  # noqa: PLC0415
    from paritybit.drive.stand_ins.installing import put  # noqa: PLC0415
    from paritybit.drive.stand_ins.table import RUNNER_OF_CUDA  # noqa: PLC0415

    if importlib.util.find_spec("uvloop") is None:  # Only the server's event loop needs it.
        module: Any = ModuleType("uvloop")
        module.EventLoopPolicy = asyncio.DefaultEventLoopPolicy
        sys.modules["uvloop"] = module
    stand_in("cpu")
    put((RUNNER_OF_CUDA,))


def stand_in_for_transformers() -> None:
    """Install the replacements that continuous batching needs on a CPU."""
    from paritybit.drive.transformers.__main__ import prepare  # noqa: PLC0415

    prepare("cpu")


def stand_in_for_vllm() -> None:
    """Install the replacements that vLLM needs on a CPU, some of them after it is imported."""
    from paritybit.drive.vllm.settings import Served  # noqa: PLC0415
    from paritybit.drive.vllm.stand_ins import (  # noqa: PLC0415
        ATTENTION,
        LORA,
        SAMPLER,
        install_before_engine,
        stand_in_for_attention,
        stand_in_for_lora,
        stand_in_for_sampling,
    )

    install_before_engine(Served())
    when_imported(ATTENTION, stand_in_for_attention)
    when_imported(SAMPLER, stand_in_for_sampling)
    when_imported(LORA, stand_in_for_lora)
    when_imported(REGISTRY, inspect_models_here)


REGISTRY = "vllm.model_executor.models.registry"


def inspect_models_here() -> None:
    """Make vLLM inspect a model's class in this process, which has the replacements."""
    registry: Any = importlib.import_module(REGISTRY)
    registry._run_in_subprocess = lambda inspect: inspect()


STAND_INS: Mapping[str, Callable[[], None]] = {
    "sglang": stand_in_for_sglang,
    "transformers": stand_in_for_transformers,
    "vllm": stand_in_for_vllm,
}


def begin() -> None:
    """Install the replacements for the engine that the environment names."""
    STAND_INS[os.environ[VARIABLE]]()


def main(words: Sequence[str]) -> int:
    """Run Python with the replacements for an engine, and return its exit code."""
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
