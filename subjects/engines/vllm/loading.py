"""Loading vLLM into this process: its stubs, and what stands for a device's platform on a CPU.

Its package is entered by its own front end, which imports its parts as they are asked for.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paritybit.subjects.engines.shared import graphs, interpreter
from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.engines.shared.operators import define_operators
from paritybit.subjects.engines.shared.ranks import OneRank
from paritybit.subjects.engines.shared.stubs import StubFinder
from paritybit.subjects.engines.shared.tensors import on_device
from paritybit.subjects.engines.vllm import PACKAGE
from paritybit.subjects.engines.vllm.settings import DECLARED

STUBS, COMPILED = tuple(DECLARED["stubs"]), tuple(DECLARED["compiled"])
"""Modules that are empty stand-ins, and of a GPU's branches what the engine compiles."""

GROUPS = ("get_pp_group", "get_tp_group", "get_dcp_group", "get_pcp_group")
"""How the engine asks for its process groups."""

ONE_RANK = OneRank()

ANSWERS: Mapping[str, Any] = {
    **dict.fromkeys(GROUPS, lambda *arguments: ONE_RANK),
    "graph_capture": graphs.on_own_stream,
    "is_global_first_rank": lambda: False,
    "get_accelerator_view_from_cpu_tensor": on_device,
    "get_cuda_view_from_cpu_tensor": on_device,
    "weak_ref_tensor": lambda held: held,
    "weak_ref_tensors": lambda held: held,
}
"""What stands in every module of the engine for what needs several processes, or its operators."""

ANSWERS_ON_CPU = {"PIN_MEMORY": False, "is_uva_available": lambda: True}
"""What else does on a CPU, whose memory is not pinned and is its own view."""


def load_vllm(package: Path, dependencies: Sequence[Path], ops: Any, device: str) -> Engine:
    """Return the engine whose package lies in a folder; on a CPU graphs are emulated by our ops."""
    on_cpu = device == "cpu"
    os.environ.update(DECLARED["environment"])
    if on_cpu:
        os.environ.update(DECLARED["environment_without_gpu"])
        graphs.emulate_device(ops)
        interpreter.quicken()
    else:
        define_compiled()
    graphs.count_replays()
    stubs = StubFinder(STUBS if on_cpu else STUBS + COMPILED)
    engine = Engine(PACKAGE, package, dependencies, stubs, front=True)
    logging.getLogger(PACKAGE).setLevel(logging.ERROR)
    if on_cpu:
        _stand_in_for_platform(type(engine.part("platforms:current_platform")))
    engine.module("v1.worker.gpu.model_runner")
    engine.answer({**ANSWERS, **(ANSWERS_ON_CPU if on_cpu else {})})
    return engine


def define_compiled() -> None:
    """Let the operators exist that ask what is compiled: nothing is."""
    define_operators(
        "_C", DECLARED["questions"], "(int capability) -> bool", lambda capability: False
    )


def _stand_in_for_platform(platform: Any) -> None:
    """Give the platform of nothing in particular what the engine asks of a device's."""
    platform.device_type = "cpu"
    platform.is_pin_memory_available = classmethod(lambda cls: False)
    platform.current_stream = staticmethod(lambda *arguments: graphs.STREAM)
    platform.graph_pool_handle = staticmethod(lambda *arguments: graphs.NO_POOL)
    platform.get_global_graph_pool = lambda self: graphs.NO_POOL
    platform.set_additional_forward_context = classmethod(lambda cls, *rest, **named: {})
