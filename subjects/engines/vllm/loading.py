"""Loading vLLM into this process: its stubs, and what stands for a device's platform on a CPU.

Its package is entered by its own front end, which imports its parts as they are asked for.
"""

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from subjects.engines.shared import graphs
from subjects.engines.shared.loading import Engine
from subjects.engines.shared.stubs import StubFinder

PACKAGE, MARKER = "vllm", "v1"
"""The engine's package, and the folder in it by which it is known."""

STUBS = (
    "aiohttp",
    "cpuinfo",
    "diskcache",
    "flashinfer",
    "gguf",
    "huggingface_hub",
    "llguidance",
    "opentelemetry",
    "prometheus_client",
    "safetensors",
    "transformers",
    "uvloop",
    "vllm.parser",
    "vllm.reasoning",
    "xgrammar",
)
"""Modules that are empty stand-ins: tokenizers, grammars, metrics, servers, compiled extras."""

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    # Set and empty: without it the engine turns Triton off where there is no driver.
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_KV_CACHE_LAYOUT": "NHD",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""What the engine and Triton are told before either is imported."""

GROUPS = ("get_pp_group", "get_tp_group", "get_dcp_group", "get_pcp_group")
"""How the engine asks for its process groups."""

ONE_RANK = SimpleNamespace(
    world_size=1, rank=0, rank_in_group=0, ranks=[0], is_first_rank=True, is_last_rank=True
)
"""A process group of one process."""


def load_vllm(package: Path, dependencies: Sequence[Path], ops: Any) -> Engine:
    """Return the engine whose package lies in a folder, on a CPU: graphs emulated by our ops."""
    os.environ.update(ENVIRONMENT)
    graphs.emulate(ops)
    graphs.count_replays()
    graphs.emulate_streams()
    torch.cuda.get_device_capability = lambda *device: (9, 0)
    engine = Engine(PACKAGE, package, dependencies, StubFinder(STUBS), front=True)
    launches = importlib.import_module("triton.runtime.interpreter").GridExecutor
    launches.__call__ = graphs.whole(launches.__call__)
    logging.getLogger(PACKAGE).setLevel(logging.ERROR)
    _stand_in_for_platform(type(engine.part("platforms:current_platform")))
    _stand_in_for_pinned_memory(engine)
    engine.module("v1.worker.gpu.model_runner")
    _stand_in_for_groups()
    return engine


def _stand_in_for_platform(platform: Any) -> None:
    """Give the platform of nothing in particular what the engine asks of a device's."""
    platform.device_type = "cpu"
    platform.is_pin_memory_available = classmethod(lambda cls: False)
    platform.current_stream = staticmethod(lambda *arguments: graphs.STREAM)
    platform.graph_pool_handle = staticmethod(lambda *arguments: graphs.NO_POOL)
    platform.get_global_graph_pool = lambda self: graphs.NO_POOL
    platform.set_additional_forward_context = classmethod(lambda cls, *rest, **named: {})


def _stand_in_for_pinned_memory(engine: Engine) -> None:
    """Let pinned memory be memory, and a device's view of it that memory, as it is on a GPU."""
    buffers = engine.module("v1.worker.gpu.buffer_utils")
    graphs.unpin_memory()
    buffers.is_uva_available = lambda: True  # type: ignore[attr-defined]
    for name in ("get_accelerator_view_from_cpu_tensor", "get_cuda_view_from_cpu_tensor"):
        if hasattr(buffers, name):
            setattr(buffers, name, lambda tensor: tensor)


@contextmanager
def no_group_capture(*arguments: Any, **named: Any) -> Any:
    """Stand for the engine's preparation of process groups for a capture: there is one rank."""
    yield SimpleNamespace(stream=graphs.STREAM)


def _stand_in_for_groups() -> None:
    """Let every module of the engine that asks for a process group find one of one process."""
    answers: dict[str, Any] = dict.fromkeys(GROUPS, lambda *arguments: ONE_RANK)
    answers |= {"graph_capture": no_group_capture, "is_global_first_rank": lambda: False}
    for name, module in list(sys.modules.items()):
        if name == PACKAGE or name.startswith(f"{PACKAGE}."):
            held = vars(module)
            held.update({asked: answer for asked, answer in answers.items() if asked in held})
            if held.get("PIN_MEMORY"):
                held["PIN_MEMORY"] = False
