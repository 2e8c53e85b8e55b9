"""Loads sglang into this process: its stubs, their answers, and the choice of its cache.

The package's own `__init__` does not run.
"""

import os
from pathlib import Path
from typing import Any

from paritybit.compat import StrEnum
from paritybit.engines import graphs, interpreter
from paritybit.engines.loading import Engine, named
from paritybit.engines.packages import SGLANG
from paritybit.engines.stubs import StubFinder
from paritybit.explore.sglang.host import Host
from paritybit.explore.sglang.settings import DECLARED
from paritybit.reference.torch_ops import TorchOps

STUBS, ABSENT = tuple(DECLARED["stubs"]), tuple(DECLARED["absent"])
"""Modules that are replaced by stubs, and modules below them that must not exist."""


class AttentionArch(StrEnum):
    """The attention architecture: keys and values per head, or latent ones."""

    MHA = "MHA"
    MLA = "MLA"


ANSWERS: dict[str, dict[str, Any]] = {
    "sglang.srt.configs.hybrid_arch": dict.fromkeys(
        (
            "hybrid_gdn_config",
            "kimi_linear_config",
            "linear_attn_model_spec",
            "mamba2_config",
            "mambaish_config",
        ),
        lambda *arguments: None,
    ),
    "sglang.srt.configs.model_config": {
        "AttentionArch": AttentionArch,
        "is_deepseek_dsa": lambda config: False,
        "is_qwen4_exp": lambda config: False,
    },
    "sgl_kernel.utils": {"is_arch_support_pdl": lambda: False},
}
"""The names that are used in stubbed modules: a plain decoder, no programmatic dependent launch."""


def load_sglang(package: Path, dependencies: Path) -> Engine:
    """Load the engine in a folder for a CPU, with interpreted Triton kernels."""
    os.environ["TRITON_INTERPRET"] = "1"
    graphs.emulate(TorchOps())
    graphs.implement_on_cpu(SGLANG.name)
    interpreter.quicken()
    os.environ.update(DECLARED["environment"])
    return Engine(SGLANG.name, package, [dependencies], StubFinder(STUBS, ABSENT, ANSWERS))


CHOICE = "srt.mem_cache.registry:default_radix_cache_factory"
"""The function of the engine that chooses a prefix cache. Older releases lack it."""


def choice_of(host: Host, parameters: Any, chunk: int) -> Any:
    """Return the argument of the engine's choice of a prefix cache, for a hybrid model."""
    context = named(
        host.engine.part("srt.mem_cache.registry:TreeCacheBuildContext"),
        effective_chunked_prefill_size=chunk,
        server_args=host.arguments,
        params=parameters,
        is_hybrid_swa=True,
        is_hybrid_ssm=False,
        enable_hierarchical_cache=False,
        disable_radix_cache=False,
        tp_worker=None,
        model_config=None,
        tp_size=1,
        tp_rank=0,
        tp_group=None,
    )
    return context()
