"""Run Python where a whole engine starts without a GPU.

`python -m paritybit.drive.on_cpu ENGINE FILE` installs what stands in for compiled code and CUDA
graphs, then runs FILE as Python does. So does `-m MODULE` in place of FILE. What runs need not know
of paritybit: its environment has `TEST_DEVICE=cpu`.
"""

import importlib
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paritybit.watch.attach import when_imported


def stand_in_for_sglang() -> None:
    """Install what sglang needs on a CPU."""
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.stand_ins.table import (  # noqa: PLC0415
        ANYWHERE,
        ON_A_CPU,
        RUNNER_OF_CUDA,
    )

    install("cpu", ANYWHERE, (*ON_A_CPU, RUNNER_OF_CUDA))


def stand_in_for_transformers() -> None:
    """Install what continuous batching needs on a CPU."""
    from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
    from paritybit.drive.transformers.stand_ins import ON_A_CPU  # noqa: PLC0415

    install("cpu", (), ON_A_CPU)


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


def main(words: Sequence[str]) -> None:
    """Run a file or a module after the stand-ins of an engine."""
    engine, *asked = words
    os.environ.update({"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "TEST_DEVICE": "cpu"})
    STAND_INS[engine]()
    if asked[0] == "-m":
        sys.argv = asked[1:]
        runpy.run_module(asked[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = asked
        runpy.run_path(asked[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
