"""A CPU platform of vLLM with the model runner and graph wrapper of CUDA, and no compiled code.

vLLM finds it through the entry-point group `vllm.platform_plugins`. Only the engine imports it.
"""

import importlib
import os
from typing import Any

platforms: Any = importlib.import_module("vllm.platforms.cpu")


def answers(value: object) -> Any:
    """Return a class method that accepts all arguments and returns a value."""
    return classmethod(lambda cls, *arguments, **named: value)


class Platform(platforms.CpuPlatform):  # type: ignore[misc]
    """A CPU that captures graphs and runs the Triton attention backend."""

    import_kernels = answers(None)
    get_attn_backend_cls = answers("vllm.v1.attention.backends.triton_attn.TritonAttentionBackend")
    get_punica_wrapper = answers("vllm.lora.punica_wrapper.punica_gpu.PunicaWrapperGPU")
    opaque_attention_op = answers(False)  # A graph cannot be split inside of an opaque operator.
    support_static_graph_mode = answers(True)
    get_static_graph_wrapper_cls = answers("vllm.compilation.cuda_graph.CUDAGraphWrapper")

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Complete a configuration as the CPU platform does, except for the settings of graphs."""
        scheduler, compilation = vllm_config.scheduler_config, vllm_config.compilation_config
        asked = scheduler.async_scheduling, compilation.cudagraph_capture_sizes
        vllm_config.parallel_config.worker_cls = "paritybit.drive.vllm.worker.Worker"
        super().check_and_update_config(vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # Workers inherit the stand-ins.
        scheduler.async_scheduling, compilation.cudagraph_capture_sizes = asked
