"""Downloads sglang, and starts it."""

import importlib
import os
import re
from pathlib import Path

from paritybit.drive.adapters import Adapter
from paritybit.drive.engine import Engine
from paritybit.drive.environment import Environment, variables, with_transformers
from paritybit.drive.served import Common
from paritybit.drive.sglang.legs import TABLE
from paritybit.drive.sglang.settings import SIMPLE, Served, says
from paritybit.engines.packages import SGLANG

IMPORTED = ("sglang.srt.managers.scheduler", "sglang.srt.models.registry")
"""Modules of the engine that take longest to import. The second one imports all models."""

REAL_DRAFTS = "SGLANG_SIMULATE_ACC_TOKEN_MODE"
"""The variable that makes an engine accept the draft's own tokens."""

CUDA_ALONE = "speculative/spec_utils.py", 'device="cuda"'
"""A file of the engine, and text in it if this works only on CUDA."""

TRANSFORMERS = re.compile(r"transformers\s*==\s*([0-9.]+)")


class Sglang(Adapter):
    """Serves the scheduler of sglang."""

    package, table, settings, simple = SGLANG, TABLE, Served, SIMPLE

    def prepare(self, spec: str) -> Environment:
        """Return the engine, with the release of transformers that it pins."""
        return with_transformers(spec, wanted_transformers)

    def variables(self, environment: Environment, served: Common) -> dict[str, str]:
        """Return the environment variables of the engine's process."""
        assert isinstance(served, Served)
        chain = served.speculative == "eagle" and served.topk == 1
        package = environment.source / SGLANG.name
        return {
            # By default, slots outside a window are freed every 128 tokens, which is 8 windows.
            "SGLANG_SWA_EVICTION_INTERVAL": "8",
            **(acceptance(package, served.device) if chain else {}),
            **variables(environment, served.device, os.environ),
        }

    def install(self, device: str) -> None:
        """Replace parts of the engine, and import it."""
        if device == "cpu":
            os.environ.setdefault("TRITON_INTERPRET", "1")
        from paritybit.drive.stand_ins.installing import install  # noqa: PLC0415
        from paritybit.drive.stand_ins.table import ANYWHERE, ON_A_CPU  # noqa: PLC0415

        install(device, ANYWHERE, ON_A_CPU)
        for name in IMPORTED:
            importlib.import_module(name)

    def engine(self, served: Common) -> Engine:
        """Return the engine."""
        from paritybit.drive.sglang.serving import Sglang as Serving  # noqa: PLC0415

        assert isinstance(served, Served)
        return Serving(served)


def wanted_transformers(package: Path) -> str | None:
    """Return the release of transformers that an engine pins, or None."""
    beside = [
        *package.parent.glob("sglang-*.dist-info/METADATA"),
        package.parent / "pyproject.toml",
    ]
    for file in beside:
        if file.is_file():
            named = TRANSFORMERS.search(file.read_text(encoding="utf-8"))
            if named is not None:
                return named[1]
    return None


def acceptance(package: Path, device: str) -> dict[str, str]:
    """Return the environment variables that make an engine accept drafts of random models.

    The accepted tokens are the draft's own, so the KV matches the tokens of the request. Nothing is
    changed for releases that would accept other tokens, or for trees of drafts.
    """
    if not says(package, "environ.py", REAL_DRAFTS):
        return {}
    if device == "cpu" and says(package, *CUDA_ALONE):
        return {}
    return {
        "SGLANG_SIMULATE_ACC_LEN": "2.5",
        "SGLANG_SIMULATE_ACC_METHOD": "multinomial",
        REAL_DRAFTS: "real-draft-token",
    }


ADAPTER = Sglang()
