"""The worker of paritybit's platform: the engine's model runner for CUDA, with CPU tensors."""

import importlib
from contextlib import nullcontext
from typing import Any

from paritybit.drive.vllm.sleep import MEMORY

workers: Any = importlib.import_module("vllm.v1.worker.cpu_worker")
on_gpus: Any = importlib.import_module("vllm.v1.worker.gpu_worker")
runners: Any = importlib.import_module("vllm.v1.worker.gpu_model_runner")


class Runner(workers.CPUModelRunner):  # type: ignore[misc]
    """A CPU model runner that wraps its model for graphs, and unwraps it, as on CUDA."""

    load_model = runners.GPUModelRunner.load_model
    get_model = runners.GPUModelRunner.get_model


class Worker(workers.CPUWorker):  # type: ignore[misc]
    """A CPU worker that captures graphs after the warm-up."""

    def init_device(self) -> None:
        """Create the model runner."""
        workers.CPUModelRunner = Runner
        super().init_device()
        workspace: Any = importlib.import_module("vllm.v1.worker.workspace")
        workspace.init_workspace_manager(self.device, 1)

    def compile_or_warm_up_model(self) -> Any:
        """Warm up, then capture graphs."""
        # It would compile kernels for sampling that is not used.
        self.vllm_config.kernel_config.enable_jit_warmup = False
        times = super().compile_or_warm_up_model()
        self.model_runner.capture_model()
        return times

    def _maybe_get_memory_pool_context(self, tag: str) -> Any:
        sleeps = self.vllm_config.model_config.enable_sleep_mode
        return MEMORY.use_memory_pool(tag) if sleeps else nullcontext()

    def sleep(self, level: int = 1) -> None:
        """Sleep as a worker of GPUs does."""
        on_gpus.Worker.sleep(self, level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake up as a worker of GPUs does."""
        on_gpus.Worker.wake_up(self, tags)
