"""Stand-ins for a GPU: graphs, streams and events. The rest of the engine is unchanged."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.attention import attend
from paritybit.drive.stand_ins.installing import StandIns
from paritybit.drive.transformers.settings import FLASH
from paritybit.engines.graphs import (
    CpuEvent,
    CpuGraph,
    CpuStream,
    emulate,
    recording,
    unpin_memory,
    whole,
)
from paritybit.reference.ops import Ops

ON_A_CPU = StandIns()

KEPT: list[Tensor] = []
"""Tensors that the current capture must not change, because a capture on a GPU runs nothing."""


class Pool:
    """Stands in for `torch.cuda.MemPool`. A tape needs no separate memory."""

    id = (0, 0)


@ON_A_CPU.add(
    "CUDA graphs, streams and events: a tape of torch ops, replayed over the same tensors",
    "a CPU has none",
)
def _stand_in_for_graphs() -> None:
    """Add graphs to torch's CUDA module, and make continuous batching use it as accelerator."""
    emulate(Ops())
    unpin_memory()
    torch.backends.cuda.enable_flash_sdp(False)  # A tape cannot record it as one op.
    cuda, module = accelerator(), torch.get_device_module
    held: Any = torch
    held.get_device_module = lambda device=None: cuda if device is None else module(device)
    held.accelerator.is_available = lambda: True
    held.Event = CpuEvent
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
    made.CUDAGraph, made.Stream, made.MemPool, made.graph = CpuGraph, CpuStream, Pool, captured
    made.stream = made.use_mem_pool = lambda one: contextlib.nullcontext()
    made.empty_cache = made.synchronize = lambda: None
    return made


def sampled(sample: Callable[..., None]) -> Callable[..., None]:
    """Make a graph keep random sampling as one step, as a tape cannot record it."""
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


@ON_A_CPU.add("flash attention: torch ops, for tables of blocks", "it is made for GPUs")
def _stand_in_for_flash_attention() -> None:
    """Give the engine flash attention, and let it decode with tables of blocks."""
    modeling: Any = importlib.import_module("transformers.modeling_utils").PreTrainedModel
    modeling._flash_attn_can_dispatch = lambda *arguments, **named: True
    flash: Any = importlib.import_module("transformers.modeling_flash_attention_utils")
    # The engine gives a kernel what its signature has.
    kernels = [wraps(one)(whole(one, returns=True)) for one in (varlen, with_tables)]
    imports = flash._lazy_imports

    def imported(implementation: Any, *arguments: Any, **named: Any) -> Any:
        if implementation != FLASH:
            return imports(implementation, *arguments, **named)
        return (None, *kernels, flash._pad_input, flash._unpad_input)

    flash._lazy_imports = imported
    initialization: Any = importlib.import_module(
        "transformers.generation.continuous_batching.initialization"
    )
    available = initialization.ensure_decode_fast_path_is_available

    def ensured(config: Any, batching: Any, *arguments: Any) -> None:
        asked = batching.max_blocks_per_request
        available(config, batching, *arguments)
        if config._attn_implementation == FLASH:  # It lacks only a GPU.
            batching.max_blocks_per_request = asked

    initialization.ensure_decode_fast_path_is_available = ensured


def captures_flash() -> bool:
    """Return whether this release captures flash attention. Older ones read on the host."""
    masks: Any = importlib.import_module("transformers.masking_utils")
    return "cache" in signature(masks.create_causal_mask).parameters


def varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """Compute attention of sequences that follow one another."""
    found = torch.zeros_like(q)
    queries, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for row in range(min(len(queries), len(keys)) - 1):
        mine, seen = slice(*queries[row : row + 2]), slice(*keys[row : row + 2])
        if mine.start < mine.stop:
            found[mine] = attended(q[mine], k[seen], v[seen], softmax_scale, causal)
    return found


def with_tables(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor,
    cache_seqlens: Tensor, block_table: Tensor, softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """Append one token to each sequence, and compute its attention. Padding has length -1."""
    found, page = torch.zeros_like(q), k_cache.shape[1]
    for row, length in enumerate(cache_seqlens.tolist()):
        if length < 0:
            continue
        position = torch.arange(length + 1)
        place = block_table[row].long()[position // page], position % page
        k_cache[place[0][-1], place[1][-1]] = k[row, 0]
        v_cache[place[0][-1], place[1][-1]] = v[row, 0]
        found[row] = attended(q[row], k_cache[place], v_cache[place], softmax_scale, causal)
    return found


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool) -> Tensor:
    """Return the attention of one sequence: [tokens, heads, size]."""
    seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q) if causal else len(k))
    return attend(q, k, v, seen, scale)
