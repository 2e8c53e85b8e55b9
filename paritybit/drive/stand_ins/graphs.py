"""CUDA graphs, streams and events for sglang on a CPU.

A graph is a tape of torch ops and of launches of interpreted kernels, over their original tensors.
A replay does not run Python code of the engine.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins.modules import found
from paritybit.engines.graphs import (
    STREAM,
    Event,
    Stream,
    emulate_device,
    implement_on_cpu,
)
from paritybit.engines.interpreter import quicken
from paritybit.reference.ops import Ops


def stand_in_for_graphs() -> None:
    """Add everything to torch's CUDA and CPU modules that the engine's graph runners need."""
    quicken()
    keep_references()
    implement_on_cpu("sglang")
    held_tensor: Any = Tensor
    held_tensor.record_stream = lambda tensor, stream: None
    emulate_device(Ops())
    for module in (torch.cuda, torch.cpu):
        held: Any = module
        held.Stream = Stream
        held.Event = Event
        # Torch's compiler rejects one function under two of its names.
        held.StreamContext = lambda stream: contextlib.nullcontext(stream)  # noqa: PLW0108
        held.stream = lambda stream: contextlib.nullcontext(stream)  # noqa: PLW0108
        for name in ("current_stream", "default_stream"):
            setattr(held, name, _answering(STREAM))
        for name in ("set_stream", "set_device", "synchronize", "empty_cache"):
            setattr(held, name, _answering(None))


def _answering(answer: object) -> Callable[..., Any]:
    """Return a new function that accepts all arguments and returns `answer`."""
    return lambda *arguments, **named: answer


WEAK_REFERENCES = "sglang.srt.compilation.weak_ref_tensor"
"""The module of a compiled function that releases the memory of a graph. It raises on a CPU."""


def keep_references() -> None:
    """Make graphs of prefills keep their outputs, because a tape does not reuse memory."""
    module: Any = ModuleType(WEAK_REFERENCES)
    module.weak_ref_tensors = module.weak_ref_tensor = lambda tensors: tensors
    sys.modules.setdefault(WEAK_REFERENCES, module)


RUNNERS = ("model_executor.model_runner", "model_executor.model_runner_components.cuda_graph_setup")
"""The modules that choose a graph runner by the kind of device, by release."""

CAPTURING = ("init_device_graphs", "init_decode_cuda_graph", "capture_decode_graph")
"""The functions of these modules, or of their model runners, that choose the graph runner."""


def use_runner_of_cuda() -> None:
    """Make an engine on a CPU build the graph runner for decoding that it builds on CUDA.

    Otherwise, it would build its graph runner for CPUs, and only if compilation is enabled.
    """
    claim_abilities()
    information: Any = importlib.import_module("sglang.srt.model_executor.forward_batch_info")
    mode = information.ForwardMode
    mode.is_cpu_graph = mode.is_cuda_graph  # Otherwise, a CPU replays only decoding.
    modules: Any = [module for name in RUNNERS if (module := found(f"sglang.srt.{name}"))]
    for module in modules:
        if hasattr(module, "CPUGraphRunner"):
            module.CPUGraphRunner = _runner_of_cuda(module)
            holders = (*modules, getattr(module, "ModelRunner", None))
            for holder, name in product(holders, CAPTURING):
                if hasattr(holder, name):
                    setattr(holder, name, _compiling(module, getattr(holder, name)))


def claim_abilities() -> None:
    """Set the platform's capabilities for graphs and Triton, which the stand-ins provide.

    Does nothing for releases without such capabilities.
    """
    try:
        platform: Any = importlib.import_module("sglang.srt.platforms.interface").SRTPlatform
    except (ModuleNotFoundError, AttributeError):
        return
    if hasattr(platform, "capabilities"):
        platform.capabilities = type(platform.capabilities)(
            graph_capture=True, supports_triton=True
        )


def _runner_of_cuda(module: Any) -> Callable[[Any], Any]:
    """Return a function that builds the graph runner of this release for CUDA."""

    def built(model_runner: Any) -> Any:
        if hasattr(model_runner, "_decode_cuda_graph_runner_cls"):
            return model_runner._decode_cuda_graph_runner_cls()(model_runner)
        newer = found("sglang.srt.model_executor.runner.decode_cuda_graph_runner")
        if newer is not None:
            return newer.DecodeCudaGraphRunner(model_runner)
        model_runner.server_args.enable_torch_compile = False
        return module.CudaGraphRunner(model_runner)

    return built


def _compiling(module: Any, capture: Callable[..., Any]) -> Callable[..., Any]:
    """Return a capture that runs as if compilation were enabled, unless graphs are disabled."""

    def captured(*runners: Any, **named: Any) -> Any:
        arguments = next(iter((*runners, *named.values()))).server_args
        if hasattr(module, "check_cuda_graph_backend"):
            off = module.check_cuda_graph_backend(module.Phase.DECODE, module.Backend.DISABLED)
        else:
            off = arguments.disable_cuda_graph
        if off:
            return capture(*runners, **named)
        flags = getattr(module, "get_flags", None)
        if flags is None:
            arguments.enable_torch_compile = True
        else:
            flag = SimpleNamespace(capture=SimpleNamespace(enable_torch_compile=True))
            module.get_flags = lambda: flag
        try:
            return capture(*runners, **named)
        finally:
            if flags is None:
                arguments.enable_torch_compile = False
            else:
                module.get_flags = flags

    return captured
