"""The worker of our platform: the runner that an engine has on CUDA, over tensors on a CPU."""

import contextlib
import importlib
from typing import Any

workers: Any = importlib.import_module("vllm.v1.worker.cpu_worker")
runners: Any = importlib.import_module("vllm.v1.worker.gpu_model_runner")


class Runner(workers.CPUModelRunner):  # type: ignore[misc]
    """A runner on a CPU that wraps its model for graphs, as on CUDA."""

    load_model = runners.GPUModelRunner.load_model


class Worker(workers.CPUWorker):  # type: ignore[misc]
    """A worker on a CPU that captures graphs once the engine is warm."""

    def init_device(self) -> None:
        """Make the runner."""
        workers.CPUModelRunner = Runner
        super().init_device()
        with contextlib.suppress(ModuleNotFoundError):  # Older releases have none.
            workspace: Any = importlib.import_module("vllm.v1.worker.workspace")
            workspace.init_workspace_manager(self.device, 1)

    def compile_or_warm_up_model(self) -> Any:
        """Warm up, then capture."""
        kernels = getattr(self.vllm_config, "kernel_config", None)
        if kernels is not None:  # Its kernels would be compiled for sampling that is not asked for.
            kernels.enable_jit_warmup = False
        times = super().compile_or_warm_up_model()
        self.model_runner.capture_model()
        return times
