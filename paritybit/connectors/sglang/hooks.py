"""The functions of the engine that each method of `SglangEngine` wraps."""

from paritybit.connectors.hooking import defined
from paritybit.connectors.sglang.engine import SglangEngine

EXECUTOR = "sglang.srt.model_executor"
SPECULATIVE = "sglang.srt.speculative"
CACHE = "sglang.srt.mem_cache"
MANAGERS = "sglang.srt.managers"
TRANSFERS = "sglang.srt.disaggregation"
OFFLOADER = "decode_kvcache_offload_manager.DecodeKVCacheOffloadManager"
SPLIT = "sglang.srt.layers.cp.zigzag.ZigzagCPStrategy"
POOLS = ("MHATokenToKVPool", "MLATokenToKVPool")

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
UPDATERS = (
    f"{MANAGERS}.scheduler_update_weights_mixin.SchedulerUpdateWeightsMixin",
    f"{MANAGERS}.scheduler_components.weight_updater.SchedulerWeightUpdaterManager",
)
UPDATES = (
    "release_memory_occupation",
    *(f"update_weights_from_{source}" for source in ("disk", "distributed", "tensor", "ipc")),
)


def of_allocator(kind: str, *names: str) -> tuple[str, ...]:
    """Return the paths of methods of a class, in each module that may define it."""
    modules = "allocator", *(f"allocator.{one}" for one in ("base", "token", "paged", "swa"))
    return tuple(f"{CACHE}.{module}.{kind}.{name}" for module in modules for name in names)


TOKENS, PAGES, WINDOWS, BASE = (
    f"{one}TokenToKVPoolAllocator" for one in ("", "Paged", "SWA", "Base")
)

CONTROLLERS = (
    f"{MANAGERS}.cache_controller.HiCacheController",
    f"{CACHE}.hybrid_cache.hybrid_cache_controller.HybridCacheController",
)

TREES = (
    "radix_cache.RadixCache",
    "unified_radix_cache.UnifiedRadixCache",
    "mamba_radix_cache.MambaRadixCache",
    "swa_radix_cache.SWARadixCache",
)

TARGETS: dict[str, tuple[str, ...]] = {
    "model_runner": (f"{EXECUTOR}.model_runner.ModelRunner.__init__",),
    "loop": (f"{MANAGERS}.scheduler.Scheduler.run_event_loop",),
    "prepares": (f"{MANAGERS}.scheduler.Scheduler.get_next_batch_to_run",),
    "batch": (f"{MANAGERS}.scheduler.Scheduler.run_batch",),
    "idle": (
        f"{MANAGERS}.scheduler.Scheduler.on_idle",
        f"{MANAGERS}.scheduler_runtime_checker_mixin.SchedulerRuntimeCheckerMixin.on_idle",
    ),
    "forward": (f"{EXECUTOR}.model_runner.ModelRunner.forward",),
    "embeds": (f"{MANAGERS}.mm_utils.prepare_mm_inputs",),
    "logits": ("sglang.srt.layers.logits_processor.LogitsProcessor.forward",),
    "samples": (f"{EXECUTOR}.model_runner.ModelRunner.sample",),
    "draws": ("sglang.srt.layers.sampler.Sampler.forward",),
    "records": (f"{MANAGERS}.scheduler.Scheduler.process_batch_result",),
    "verifies": (f"{SPECULATIVE}.eagle_utils.eagle_sample",),
    "decodes": (f"{MANAGERS}.schedule_batch.ScheduleBatch.prepare_for_decode",),
    "parts": tuple(f"{SPLIT}.shard_{name}" for name in ("hidden_states", "position_ids")),
    "rejoins": tuple(f"{SPLIT}.gather_{name}" for name in ("hidden_states", "kv_cache")),
    "run_batch": (f"{EXECUTOR}.model_runner.ModelRunner._forward_raw",),
    "capture": tuple(f"{path}.capture" for path in RUNNERS),
    "runner": tuple(f"{path}.{name}" for path in RUNNERS for name in ("replay", "execute")),
    "replay": ("torch.cuda.CUDAGraph.replay",),
    "free": (
        *of_allocator(TOKENS, "free"),
        f"{CACHE}.allocator.mamba.MambaSlotAllocator.free",
        f"{CACHE}.memory_pool.MambaPool.free",
    ),
    "free_pages": of_allocator(PAGES, "_release_page_ids"),
    "free_in_pages": of_allocator(PAGES, "free"),
    "group": of_allocator(BASE, "free_group_begin"),
    "collect": (
        *of_allocator(TOKENS, "free"),
        *of_allocator(PAGES, "free", "free_segment"),
        *of_allocator(WINDOWS, "free", "free_swa", "free_swa_segment"),
    ),
    "allocate": (
        *of_allocator(TOKENS, "alloc"),
        *of_allocator(PAGES, "alloc", "alloc_extend", "alloc_decode"),
        f"{CACHE}.allocator.mamba.MambaSlotAllocator._do_alloc",
        f"{CACHE}.memory_pool.MambaPool.alloc",
    ),
    "copy_state": (f"{CACHE}.memory_pool.MambaPool.copy_from",),
    "clear_state": (f"{CACHE}.memory_pool.MambaPool.clear_slots",),
    "restore": of_allocator(BASE, "restore_state"),
    "move": tuple(f"{CACHE}.memory_pool.{pool}.move_kv_cache" for pool in POOLS),
    "emptied": (
        f"{MANAGERS}.scheduler.Scheduler.flush_cache",
        *(f"{path}.{name}" for path in UPDATERS for name in UPDATES),
    ),
    "host_pool": tuple(
        f"{CACHE}.{module}.HostKVCache.__init__"
        for module in ("memory_pool_host", "pool_host.base")
    ),
    "submit": tuple(
        f"{path}.{name}" for path in CONTROLLERS for name in ("start_writing", "start_loading")
    ),
    "plans": tuple(f"{path}.{name}" for path in CONTROLLERS for name in ("write", "load")),
    "retracts": tuple(
        f"{CACHE}.unified_radix_cache.UnifiedRadixCache.{name}_kv_cache"
        for name in ("backup", "restore")
    ),
    **{
        f"{name}s": (f"{CACHE}.unified_radix_cache.UnifiedRadixCache.{way}_host_lock_ref",)
        for name, way in (("lock", "inc"), ("unlock", "dec"))
    },
    "completion_of": tuple(
        f"{CACHE}.l2_transfer.L2TransferEngine.submit_{way}"
        for way in ("device_to_host", "host_to_device")
    ),
    "completes": (
        f"{TRANSFERS}.{OFFLOADER}._check_offload_progress",
        *(
            f"{CACHE}.{path}.{name}"
            for path in ("hiradix_cache.HiRadixCache", "unified_radix_cache.UnifiedRadixCache")
            for name in ("writing_check", "loading_check")
        ),
    ),
    "polled": tuple(
        f"{CACHE}.{path}.check_hicache_events"
        for path in ("hiradix_cache.HiRadixCache", "unified_radix_cache.UnifiedRadixCache")
    ),
    "fetch": tuple(f"{path}._page_transfer" for path in CONTROLLERS),
    "fetch_beside": (f"{CACHE}.hicache_storage.HiCacheFile.batch_get_v2",),
    "fetched": tuple(f"{path}.terminate_prefetch" for path in CONTROLLERS[:1]),
    "stores": tuple(f"{path}.write_storage" for path in CONTROLLERS),
    "stored": tuple(f"{path}._page_backup" for path in CONTROLLERS),
    "file_read": (f"{CACHE}.hicache_storage.HiCacheFile.get",),
    "file_written": (f"{CACHE}.hicache_storage.HiCacheFile.set",),
    "caches": tuple(
        f"{CACHE}.{path}.{name}"
        for path in TREES
        for name in ("checkpoint", "cache_finished_req", "cache_unfinished_req")
    ),
    "inserts": tuple(f"{CACHE}.{path}.insert" for path in TREES),
    "save": tuple(f"{CACHE}.memory_pool.{pool}.get_cpu_copy" for pool in POOLS),
    "load": tuple(f"{CACHE}.memory_pool.{pool}.load_cpu_copy" for pool in POOLS),
}

COMMON, QUEUE = f"{TRANSFERS}.common.conn.CommonKV", f"{TRANSFERS}.decode.DecodeTransferQueue"

APART: dict[str, tuple[str, ...]] = {
    "keeps_first": (f"{TRANSFERS}.utils.MetadataBuffers.set_buf",),
    "sends": (f"{COMMON}Sender.send",),
    "sees_end": (f"{COMMON}Sender.poll",),
    "concludes": (f"{COMMON}Sender.abort",),
    "registers": (
        f"{TRANSFERS}.mooncake.conn.MooncakeKVManager.build_receiver_registration_message",
    ),
    "receives": (f"{COMMON}Manager._make_worker_recv",),
    "prepares_transfer": (f"{TRANSFERS}.decode.DecodePreallocQueue._send_kv_metadata",),
    "expects": (f"{COMMON}Receiver.send_metadata",),
    "commits": (f"{QUEUE}._commit_transfer_to_req",),
    "begins": (
        f"{TRANSFERS}.decode_schedule_batch_mixin.ScheduleBatchDisaggregationDecodeMixin"
        ".process_prebuilt",
    ),
    "releases": (f"{QUEUE}._do_release",),
}
"""The functions of transfers between prefill and decode."""


OPTIONAL = (
    *("restore", "verifies", "clear_state", "parts", "rejoins", "embeds"),
    *("retracts", "completion_of", "locks", "unlocks", "draws"),
)
"""The hooks that releases may lack."""


def install() -> None:
    """Wrap each target that this release has."""
    exact = any(map(defined, TARGETS["free_pages"]))
    without = {"free_in_pages" if exact else "free_pages"}  # The one calls the other.
    without |= {one for one in OPTIONAL if not any(map(defined, TARGETS[one]))}
    apart = APART if all(defined(path) for paths in APART.values() for path in paths) else {}
    SglangEngine.backends = ("mooncake",) if apart else ()
    targets = {name: paths for name, paths in TARGETS.items() if name not in without}
    SglangEngine.connect({**targets, **apart})
