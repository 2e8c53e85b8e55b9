"""A CPU platform of vLLM with the model runner and graph wrapper of CUDA, and no compiled code.

vLLM finds it through the entry-point group `vllm.platform_plugins`. Only the engine imports it.
"""

import importlib
import os
from typing import Any

platforms: Any = importlib.import_module("vllm.platforms.cpu")


BACKENDS = "vllm.v1.attention.backends"

ASKED = {
    "scheduler_config": (
        *("async_scheduling", "enable_chunked_prefill", "max_num_batched_tokens"),
    ),
    "cache_config": ("block_size", "enable_prefix_caching"),
    "compilation_config": ("cudagraph_capture_sizes",),
}
"""The settings that are kept as they were asked, by their part of the configuration."""


def answers(value: object) -> Any:
    """Return a class method that accepts all arguments and returns a value."""
    return classmethod(lambda cls, *arguments, **named: value)


class Platform(platforms.CpuPlatform):  # type: ignore[misc]
    """A CPU that captures graphs. Its attention backends are Triton's, or else FlashAttention."""

    import_kernels = answers(None)
    get_punica_wrapper = answers("vllm.lora.punica_wrapper.punica_gpu.PunicaWrapperGPU")
    discover_numa_topology = answers([])  # Transfers would be alone on a core.
    opaque_attention_op = answers(False)  # A graph cannot be split inside of an opaque operator.
    support_static_graph_mode = is_sleep_mode_available = answers(True)
    get_static_graph_wrapper_cls = answers("vllm.compilation.cuda_graph.CUDAGraphWrapper")

    @classmethod
    def get_attn_backend_cls(cls, *given: Any, attn_selector_config: Any, **named: Any) -> str:
        """Return the class of the attention backend."""
        if getattr(attn_selector_config, "use_sparse", False):
            return f"{BACKENDS}.mla.flashattn_mla_sparse.FlashAttnMLASparseBackend"
        if attn_selector_config.use_mla:
            return f"{BACKENDS}.mla.triton_mla.TritonMLABackend"
        split = getattr(attn_selector_config, "use_dcp", False)
        return f"{BACKENDS}.{'flash_attn.Flash' if split else 'triton_attn.Triton'}AttentionBackend"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Complete a configuration as the CPU platform does, except for settings in ASKED."""
        parts = {part: getattr(vllm_config, part) for part in ASKED}
        asked = [(part, name, getattr(parts[part], name)) for part in ASKED for name in ASKED[part]]
        vllm_config.parallel_config.worker_cls = "paritybit.drive.vllm.worker.Worker"
        super().check_and_update_config(vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # Workers inherit the stand-ins.
        for part, name, value in asked:
            setattr(parts[part], name, value)
