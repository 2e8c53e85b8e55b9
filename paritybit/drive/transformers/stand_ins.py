"""Stand-ins for a GPU: graphs, streams and events. The rest of the engine is unchanged."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins.installing import StandIn
from paritybit.drive.transformers.flash import stand_in_for_flash_attention
from paritybit.engines.graphs import (
    CpuGraph,
    Event,
    Stream,
    emulate,
    recording,
    unpin_memory,
    whole,
)
from paritybit.reference.ops import Ops

KEPT: list[Tensor] = []
"""Tensors that the current capture must not change, because a capture on a GPU runs nothing."""


class Pool:
    """Stands in for `torch.cuda.MemPool`. A tape needs no separate memory."""

    id = (0, 0)


def stand_in_for_graphs() -> None:
    """Add graphs to torch's CUDA module, and make continuous batching use it as accelerator."""
    emulate(Ops())
    unpin_memory()
    torch.backends.cuda.enable_flash_sdp(False)  # A tape cannot record it as one op.
    cuda, module = accelerator(), torch.get_device_module
    held: Any = torch
    held.get_device_module = lambda device=None: cuda if device is None else module(device)
    held.accelerator.is_available = lambda: True
    held.Event = Event
    continuous = "transformers.generation.continuous_batching"
    runner: Any = importlib.import_module(f"{continuous}.model_runner").ModelRunner
    runner._capture_graph = keeping(runner._capture_graph)
    runner._sample = sampled(runner._sample)
    processors: Any = importlib.import_module(f"{continuous}.cb_logits_processors")
    processing = processors.ContinuousBatchingLogitsProcessorList
    processing.__call__ = whole(processing.__call__, returns=True)
    pairs: Any = importlib.import_module(f"{continuous}.input_outputs").ContinuousBatchingAsyncIOs
    pairs._supported_device_types = ("cuda", "cpu")


def accelerator() -> Any:
    """Return a module that stands in for torch's CUDA module."""
    made: Any = ModuleType(torch.cuda.__name__)
    made.is_available = lambda: True
    made.CUDAGraph, made.Stream, made.MemPool, made.graph = CpuGraph, Stream, Pool, captured
    made.stream = made.use_mem_pool = lambda one: contextlib.nullcontext()
    made.empty_cache = made.synchronize = lambda: None
    return made


def sampled(sample: Callable[..., None]) -> Callable[..., None]:
    """Make a recording graph keep random sampling as one step, as a tape cannot record it."""
    kept = whole(sample)

    def called(runner: Any, *arguments: Any, **named: Any) -> None:
        (kept if runner.do_sample else sample)(runner, *arguments, **named)

    return called


def keeping(capture: Callable[..., None]) -> Callable[..., None]:
    """Return a capture that restores the cache and the outputs afterwards."""

    def called(runner: Any, forward: Any, stream: Any, *arguments: Any, **named: Any) -> None:
        KEPT[:] = [
            runner.cache.cache_tensor,
            *(one for one in (*arguments, *named.values()) if isinstance(one, Tensor)),
        ]
        try:
            capture(runner, forward, stream, *arguments, **named)
        finally:
            KEPT.clear()

    return called


@contextlib.contextmanager
def captured(graph: CpuGraph, *arguments: Any, **settings: Any) -> Iterator[None]:
    """Stand in for `torch.cuda.graph`, which records without running."""
    values = [tensor.clone() for tensor in KEPT]
    with recording(graph):
        yield
    for tensor, value in zip(KEPT, values, strict=True):
        tensor.copy_(value)


ON_A_CPU = (
    StandIn(
        "CUDA graphs, streams and events: a tape of torch ops, replayed over the same tensors",
        "a CPU has none",
        stand_in_for_graphs,
    ),
    StandIn(
        "flash attention: torch ops, for tables of blocks",
        "it is made for GPUs",
        stand_in_for_flash_attention,
    ),
)
"""The stand-ins for a CPU."""
