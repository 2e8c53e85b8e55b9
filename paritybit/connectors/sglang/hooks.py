"""Lists the functions of the engine that are wrapped. A target that a release lacks is skipped."""

import functools
from collections.abc import Callable
from typing import Any

from paritybit.connectors import hooking
from paritybit.connectors.sglang.allocations import BACK_UP, HOST_KINDS, LOAD_BACK
from paritybit.connectors.sglang.engine import Engine
from paritybit.watch.journal import of_process
from paritybit.watch.settings import active

EXECUTOR = "sglang.srt.model_executor"
SPECULATIVE = "sglang.srt.speculative"
CACHE = "sglang.srt.mem_cache"

RUNNERS = (
    f"{EXECUTOR}.cuda_graph_runner.CudaGraphRunner",
    f"{EXECUTOR}.piecewise_cuda_graph_runner.PiecewiseCudaGraphRunner",
    f"{EXECUTOR}.breakable_cuda_graph_runner.BreakableCudaGraphRunner",
    f"{EXECUTOR}.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner",
    f"{EXECUTOR}.runner.prefill_cuda_graph_runner.PrefillCudaGraphRunner",
    f"{SPECULATIVE}.eagle_draft_cuda_graph_runner.EAGLEDraftCudaGraphRunner",
    f"{SPECULATIVE}.eagle_draft_extend_cuda_graph_runner.EAGLEDraftExtendCudaGraphRunner",
    f"{SPECULATIVE}.multi_layer_eagle_draft_extend_cuda_graph_runner"
    ".MultiLayerEagleDraftExtendCudaGraphRunner",
)

MODULES_OF_ALLOCATORS = (
    f"{CACHE}.allocator",
    f"{CACHE}.allocator.token",
    f"{CACHE}.allocator.paged",
)
UPDATERS = (
    "sglang.srt.managers.scheduler_update_weights_mixin.SchedulerUpdateWeightsMixin",
    "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager",
)
POOLS = ("MHATokenToKVPool", "MLATokenToKVPool")

HOST_POOLS = tuple(
    f"{CACHE}.{module}.{kind}"
    for module in ("memory_pool_host", "pool_host.mha", "pool_host.mla")
    for kind in HOST_KINDS
)

TARGETS: dict[str, tuple[str, ...]] = {
    "model_runner": (f"{EXECUTOR}.model_runner.ModelRunner.__init__",),
    "loop": ("sglang.srt.managers.scheduler.Scheduler.run_event_loop",),
    "prepares": ("sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run",),
    "batch": ("sglang.srt.managers.scheduler.Scheduler.run_batch",),
    "idle": (
        "sglang.srt.managers.scheduler.Scheduler.on_idle",
        "sglang.srt.managers.scheduler_runtime_checker_mixin.SchedulerRuntimeCheckerMixin.on_idle",
    ),
    "forward": (f"{EXECUTOR}.model_runner.ModelRunner.forward",),
    "capture": tuple(f"{path}.capture" for path in RUNNERS),
    "runner": tuple(f"{path}.{name}" for path in RUNNERS for name in ("replay", "execute")),
    "replay": ("torch.cuda.CUDAGraph.replay",),
    "free": (
        *(f"{path}.TokenToKVPoolAllocator.free" for path in MODULES_OF_ALLOCATORS),
        f"{CACHE}.allocator.mamba.MambaSlotAllocator.free",
        f"{CACHE}.memory_pool.MambaPool.free",
    ),
    "free_pages": tuple(
        f"{path}.PagedTokenToKVPoolAllocator._release_page_ids" for path in MODULES_OF_ALLOCATORS
    ),
    "free_in_pages": tuple(
        f"{path}.PagedTokenToKVPoolAllocator.free" for path in MODULES_OF_ALLOCATORS
    ),
    "group": tuple(
        f"{CACHE}.{path}.free_group_begin"
        for path in (
            *(f"{module}.BaseTokenToKVPoolAllocator" for module in ("allocator", "allocator.base")),
            "allocator.paged.PagedTokenToKVPoolAllocator",
            "allocator.swa.SWATokenToKVPoolAllocator",
        )
    ),
    "allocate": (
        *(
            f"{path}.{owner}.{name}"
            for path in MODULES_OF_ALLOCATORS
            for owner in ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")
            for name in ("alloc", "alloc_extend", "alloc_decode")
        ),
        f"{CACHE}.allocator.mamba.MambaSlotAllocator._do_alloc",
        f"{CACHE}.memory_pool.MambaPool.alloc",
    ),
    "copy_state": (f"{CACHE}.memory_pool.MambaPool.copy_from",),
    "restore": tuple(
        f"{path}.BaseTokenToKVPoolAllocator.restore_state"
        for path in (f"{CACHE}.allocator", f"{CACHE}.allocator.base")
    ),
    "move": tuple(f"{CACHE}.memory_pool.{pool}.move_kv_cache" for pool in POOLS),
    "emptied": (
        "sglang.srt.managers.scheduler.Scheduler.flush_cache",
        *(f"{path}.release_memory_occupation" for path in UPDATERS),
        *(
            f"{path}.update_weights_from_{source}"
            for path in UPDATERS
            for source in ("disk", "distributed", "tensor", "ipc")
        ),
    ),
    "host_pool": tuple(
        f"{CACHE}.{module}.HostKVCache.__init__"
        for module in ("memory_pool_host", "pool_host.base")
    ),
    "give_back": tuple(
        f"{CACHE}.unified_cache.components.{path}.free_host_values"
        for path in ("full.FullComponent", "swa.SWAComponent", "mamba.MambaComponent")
    ),
    "allocate_on_host": (f"{CACHE}.pool_host.base.HostKVCache.alloc",),
    "back_up": tuple(f"{path}.{BACK_UP}" for path in HOST_POOLS),
    "load_back": tuple(f"{path}.{LOAD_BACK}" for path in HOST_POOLS),
    "load": tuple(f"{CACHE}.memory_pool.{pool}.load_cpu_copy" for pool in POOLS),
}
"""Maps each method of `Engine` or `Allocations` to the functions that it wraps."""

REQUIRED: dict[str, tuple[str, ...]] = {
    "the batches of the scheduler": ("batch",),
    "the forwards of the model runner": ("forward", "model_runner"),
    "the replays of graphs": ("replay",),
    "what the graph runners replay": ("runner",),
    "the allocator of slots": ("free", "allocate"),
    "the allocator of pages": ("free_pages", "free_in_pages"),
}
"""Maps each required subject to methods, of which one must have a target in the release."""


def install() -> None:
    """Wrap each target that this release has."""
    settings, journal = active(), of_process()
    if settings is None or journal is None:
        return
    engine = Engine(hooking.release_of("sglang"), journal, settings)
    targets = dict(TARGETS)
    if any(map(hooking.defined, targets["free_pages"])):
        del targets["free_in_pages"]  # Every free of pages calls the other, with exact numbers.
    lacking = hooking.install(targets, functools.partial(method_of, engine))
    for what, names in REQUIRED.items():
        if not {*names} & targets.keys() - {*lacking}:
            journal.undecided(f"sglang {engine.release}: {what} cannot be watched")


def method_of(engine: Engine, name: str) -> Callable[..., Any]:
    """Return the method of a name in TARGETS."""
    owner = engine if hasattr(engine, name) else engine.allocations
    method: Callable[..., Any] = getattr(owner, name)
    return method
