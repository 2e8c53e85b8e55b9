"""A CPU platform of vLLM with the model runner and graph wrapper of CUDA, and no compiled code.

vLLM finds it through the entry-point group `vllm.platform_plugins`. Only the engine imports it.
"""

import importlib
from typing import Any

platforms: Any = importlib.import_module("vllm.platforms.cpu")

WRAPPER = "vllm.compilation.cuda_graph.CUDAGraphWrapper"


class Platform(platforms.CpuPlatform):  # type: ignore[misc]
    """A CPU that captures graphs and runs the Triton attention backend."""

    @classmethod
    def import_kernels(cls) -> None:
        """Import nothing, because there is no compiled code."""

    @classmethod
    def get_attn_backend_cls(cls, *arguments: Any, **named: Any) -> str:
        """Return the Triton attention backend."""
        return "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Complete a configuration as the CPU platform does, except for the settings of graphs."""
        scheduler, compilation = vllm_config.scheduler_config, vllm_config.compilation_config
        asked = scheduler.async_scheduling, compilation.cudagraph_capture_sizes
        vllm_config.parallel_config.worker_cls = "paritybit.drive.vllm.worker.Worker"
        super().check_and_update_config(vllm_config)
        scheduler.async_scheduling, compilation.cudagraph_capture_sizes = asked

    @classmethod
    def get_punica_wrapper(cls) -> str:
        """Return the class that calls the LoRA kernels."""
        return "vllm.lora.punica_wrapper.punica_gpu.PunicaWrapperGPU"

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """Return whether attention is an opaque operator. A graph cannot be split inside of one."""
        return False

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Return whether graphs can be captured."""
        return True

    @classmethod
    def get_static_graph_wrapper_cls(cls) -> str:
        """Return the wrapper that captures and replays graphs."""
        return WRAPPER
