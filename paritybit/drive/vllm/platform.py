"""A platform of vLLM on a CPU: its own runner and graph wrapper as on CUDA, no compiled code.

It is found through the entry-point group `vllm.platform_plugins`. Imported by the engine alone.
"""

import importlib
from typing import Any

platforms: Any = importlib.import_module("vllm.platforms.cpu")

WRAPPER = "vllm.compilation.cuda_graph.CUDAGraphWrapper"


class Platform(platforms.CpuPlatform):  # type: ignore[misc]
    """A CPU that captures graphs and runs the Triton attention backend."""

    @classmethod
    def import_kernels(cls) -> None:
        """Import nothing: there is no compiled code."""

    @classmethod
    def get_attn_backend_cls(cls, *arguments: Any, **named: Any) -> str:
        """Return the attention backend whose kernels are Triton's."""
        return "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Settle a configuration as a CPU does, but for what graphs need."""
        scheduler, compilation = vllm_config.scheduler_config, vllm_config.compilation_config
        asked = scheduler.async_scheduling, compilation.cudagraph_capture_sizes
        vllm_config.parallel_config.worker_cls = "paritybit.drive.vllm.worker.Worker"
        super().check_and_update_config(vllm_config)
        scheduler.async_scheduling, compilation.cudagraph_capture_sizes = asked

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """Whether attention is called as an operator, within which a graph cannot be parted."""
        return False

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Whether graphs can be captured."""
        return True

    @classmethod
    def get_static_graph_wrapper_cls(cls) -> str:
        """Return the wrapper that captures and replays."""
        return WRAPPER
