"""Downloads sglang, and prepares its process."""

import os
import re
from pathlib import Path

from paritybit.drive.adapters import Adapter
from paritybit.drive.environment import Environment, variables, with_transformers
from paritybit.drive.served import Common
from paritybit.drive.sglang.legs import TABLE
from paritybit.drive.sglang.settings import Served, says
from paritybit.engines.packages import SGLANG

REAL_DRAFTS = "SGLANG_SIMULATE_ACC_TOKEN_MODE"
"""The variable that makes an engine accept the draft's own tokens."""

CUDA_ALONE = "speculative/spec_utils.py", 'device="cuda"'
"""A file of the engine, and text in it if this works only on CUDA."""

TRANSFORMERS = re.compile(r"transformers\s*==\s*([0-9.]+)")


def prepare(spec: str) -> Environment:
    """Return the engine, with the release of transformers that it pins."""
    return with_transformers(spec, wanted_transformers)


def variables_of(environment: Environment, served: Common) -> dict[str, str]:
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


def wanted_transformers(package: Path) -> str | None:
    """Return the release of transformers that an engine pins, or None."""
    metadata = package.parent.glob("sglang-*.dist-info/METADATA")
    for file in (*metadata, package.parent / "pyproject.toml"):
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


ADAPTER = Adapter(SGLANG, TABLE, Served, prepare, variables_of)
