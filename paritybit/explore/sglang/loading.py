"""Loads sglang into this process, with stubs for what it imports and does not use here.

The package's own `__init__` does not run.
"""

import os
from pathlib import Path

from paritybit.engines import graphs, interpreter
from paritybit.engines.loading import Engine
from paritybit.engines.packages import SGLANG
from paritybit.engines.stubs import StubFinder
from paritybit.reference.ops import Ops

STUBS = (
    *("IPython", "compressed_tensors", "flashinfer", "gguf", "huggingface_hub", "openai"),
    *("partial_json_parser", "safetensors", "sgl_kernel", "sglang.srt.configs"),
    *("sglang.srt.managers.scheduler", "sglang.srt.managers.tp_worker"),
    *("sglang.srt.model_executor.model_runner", "sglang.srt.server_args"),
    *("torchvision", "transformers", "tvm_ffi"),
)
"""Modules that are replaced by stubs."""

ABSENT = ("tvm_ffi.cpp",)
"""Modules below stubs that must not exist: a compiler, without which the engine uses torch."""

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "SGLANG_SWA_EVICTION_INTERVAL": "1",
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
    "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
    "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
    "SGLANG_FORCE_CONFIDENTIAL_COMPUTE": "false",
}
"""Environment variables that are set before the engine is imported.

Slots outside a window are freed immediately. The tree is the one in Python, because the one in
Rust, the default of the newest releases, does not expose its nodes. On a machine with a GPU, the
engine does not use what is compiled for it.
"""


def load_sglang(package: Path, dependencies: Path) -> Engine:
    """Load the engine in a folder for a CPU, with interpreted Triton kernels."""
    os.environ.update(ENVIRONMENT)
    graphs.emulate(Ops())
    graphs.implement_on_cpu(SGLANG.name)
    interpreter.quicken()
    return Engine(SGLANG.name, package, [dependencies], StubFinder(STUBS, ABSENT))
