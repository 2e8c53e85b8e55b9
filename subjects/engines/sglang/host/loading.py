"""Loading sglang into this process: its stubs, what they answer, and where its package lies.

Its package is entered without its front end.
"""

from pathlib import Path
from typing import Any

from paritybit.subjects.engines.sglang import PACKAGE
from paritybit.subjects.engines.sglang.host.settings import DECLARED
from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.engines.shared.operators import define_operators
from paritybit.subjects.engines.shared.stubs import StubFinder

from paritybit.compat import StrEnum

STUBS, ABSENT = tuple(DECLARED["stubs"]), tuple(DECLARED["absent"])
"""Modules that are empty stand-ins, and what must not be found below one."""


class AttentionArch(StrEnum):
    """How a model attends: over keys and values of heads, or over latent ones."""

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
"""What stubbed modules have that is used: a plain decoder, no programmatic dependent launch."""


def load_sglang(package: Path, dependencies: Path, device: str = "cpu") -> Engine:
    """Return the engine whose package lies in a folder."""
    if device != "cpu":
        define_compiled()
    return Engine(PACKAGE, package, [dependencies], StubFinder(STUBS, ABSENT, ANSWERS))


def define_compiled() -> None:
    """Let the operators exist that an import on a GPU wants to."""
    define_operators("sgl_kernel", DECLARED["operators"], "(Tensor values) -> Tensor")
