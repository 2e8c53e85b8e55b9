"""The functions of the engine that each method of `VllmEngine` wraps: at least one each."""

import functools

from paritybit.connectors.vllm.engine import VllmEngine

OLDER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
NEWER = "vllm.v1.worker.gpu.model_runner.GPUModelRunner"
QUEUE = "vllm.v1.core.kv_cache_utils.FreeKVCacheBlockQueue"
SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"
MANAGERS = "vllm.v1.worker.gpu.cudagraph_utils"
DRAFTERS = "vllm.v1.worker.gpu.spec_decode"
SPECULATORS = f"{DRAFTERS}.target_dependent_ar.speculator"
STATES = "vllm.v1.worker.gpu.model_states"
SPECULATOR = f"{SPECULATORS}.TargetDependentARSpeculator"

CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"
OFFLOADING = f"{CONNECTORS}.offloading.worker.OffloadingConnectorWorker"
CACHED = f"{CONNECTORS}.lmcache_connector.LMCacheConnectorV1"
EXAMPLE = f"{CONNECTORS}.example_connector.ExampleConnector"
COPIES = "vllm.v1.kv_offload.cpu.gpu_worker"
CHUNKS = "vllm.v1.kv_offload.cpu.manager.CPUOffloadingManager"
SIMPLE = "vllm.v1.simple_kv_offload"
TIER = "vllm.v1.kv_offload.tiering.fs"

CORE = "vllm.v1.engine.core"

TARGETS: dict[str, tuple[str, ...]] = {
    "loop": (
        f"{CORE}.EngineCoreProc.run_busy_loop",
        f"{CORE}.EngineCore.step",
        f"{CORE}.EngineCore.step_with_batch_queue",
    ),
    "launched": ("vllm.v1.engine.utils.CoreEngineProcManager.__init__",),
    "pools": (f"{OLDER}.initialize_kv_cache", f"{NEWER}.initialize_kv_cache"),
    "schedule": (f"{SCHEDULER}.schedule",),
    "execute": (f"{OLDER}.execute_model", f"{NEWER}.execute_model"),
    "dummy": ("vllm.v1.worker.gpu_worker.Worker.execute_dummy_batch",),
    "sleeps": tuple(f"vllm.v1.worker.gpu_worker.Worker.{one}" for one in ("sleep", "discard")),
    "raised": tuple(
        f"{runner}.{name}"
        for runner in (OLDER, NEWER)
        for name in ("execute_model", "sample_tokens")
    ),
    "metadata": (
        f"{OLDER}._build_attention_metadata",
        f"{STATES}.default.DefaultModelState.prepare_attn",
        f"{STATES}.mamba_hybrid.MambaHybridModelState.prepare_attn",
    ),
    "prepares": (f"{NEWER}.postprocess_sampled",),
    "sampled": (f"{OLDER}._sample", f"{NEWER}.sample"),
    "processed": (
        "vllm.v1.sample.sampler.Sampler.apply_logits_processors",
        "vllm.v1.sample.rejection_sampler.RejectionSampler.apply_logits_processors",
        "vllm.v1.worker.gpu.sample.sampler.Sampler.apply_sampling_params",
    ),
    "proposed": (
        f"{OLDER}.propose_draft_token_ids",
        f"{DRAFTERS}.utils.DraftTokensHandler.set_draft_tokens",
    ),
    "drafted": (f"{OLDER}.propose_draft_token_ids", f"{SPECULATOR}.propose"),
    "prefills": (f"{SPECULATORS}.prepare_prefill_inputs",),
    "steps": (f"{SPECULATOR}._multi_step_decode", f"{SPECULATOR}._fused_multi_step_decode"),
    "draft_graph": (f"{MANAGERS}.CudaGraphManager.run_fullgraph",),
    "draft_metadata": (
        "vllm.v1.spec_decode.llm_base_proposer.SpecDecodeBaseProposer"
        ".build_per_group_and_layer_attn_metadata",
        f"{DRAFTERS}.speculator.DraftModelSpeculator._build_uniform_attn_metadata",
    ),
    "model": (f"{OLDER}._model_forward", f"{MANAGERS}.CudaGraphManager.run_pw_graph"),
    "captured": ("torch.cuda.CUDAGraph.capture_end",),
    "replay": ("torch.cuda.CUDAGraph.replay",),
    "wrapper": (
        "vllm.compilation.cuda_graph.CUDAGraphWrapper.__call__",
        f"{MANAGERS}.ModelCudaGraphManager.run_fullgraph",
    ),
    "frees": (
        *(f"{QUEUE}.{name}" for name in ("append", "append_n", "prepend_n")),
        f"{CHUNKS}._free_chunk",
    ),
    "takes": (
        *(f"{QUEUE}.{name}" for name in ("popleft", "popleft_n", "remove")),
        f"{CHUNKS}._allocate_chunks",
    ),
    "refers": tuple(
        f"{CHUNKS}.{name}" for name in ("prepare_load", "complete_load", "complete_store")
    ),
    "shares": ("vllm.v1.core.block_pool.BlockPool.touch",),
    "expects": (f"{OFFLOADING}.handle_preemptions",),
    "stores": (f"{OFFLOADING}.prepare_store_kv",),
    "loads": (f"{OFFLOADING}.start_kv_transfers",),
    "submits": (
        f"{COPIES}.CPUOffloadingWorker.submit_store",
        f"{COPIES}.CPUOffloadingWorker.submit_load",
    ),
    "transfer": (f"{COPIES}.SingleDirectionOffloadingHandler.transfer_async",),
    "finishes": (f"{COPIES}.CPUOffloadingWorker.get_finished",),
    "waits": (f"{COPIES}.CPUOffloadingWorker.wait",),
    "goes_below": tuple(
        f"{TIER}.manager.FileSystemTierManager.submit_{way}" for way in ("store", "load")
    ),
    "ends_below": (f"{TIER}.manager.FileSystemTierManager.get_finished_jobs",),
    "writes_below": (f"{TIER}.io.batch_store_block",),
    "reads_below": (f"{TIER}.io.batch_load_block",),
    "launches": (f"{SIMPLE}.copy_backend.DmaCopyBackend.launch_copy",),
    "copies_blocks": (f"{SIMPLE}.cuda_mem_ops.copy_blocks",),
    "polls": (f"{SIMPLE}.worker.SimpleCPUOffloadWorker._poll_stream_events",),
    "flushes": (f"{SIMPLE}.worker.SimpleCPUOffloadWorker._flush_and_sync_all",),
    "opens": (f"{EXAMPLE}.start_load_kv",),
    "files": (f"{EXAMPLE}._generate_filename_debug",),
    "saves": (f"{EXAMPLE}.wait_for_save",),
    "registers": (f"{CACHED}.register_kv_caches",),
    "awaits": (f"{CACHED}.start_load_kv",),
    "fails": (f"{SCHEDULER}._handle_failed_recving", f"{SCHEDULER}._handle_invalid_blocks"),
    "records": (f"{SCHEDULER}.update_from_output",),
    "emptied": (f"{SCHEDULER}.reset_prefix_cache",),
    "updates": (f"{SCHEDULER}.update_from_output",),
    "idle": (f"{SCHEDULER}.update_from_output", f"{SCHEDULER}.finish_requests"),
}


@functools.cache
def install() -> None:
    """Wrap each target that this release has."""
    VllmEngine.connect(TARGETS)
