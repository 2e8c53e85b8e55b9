"""Downloads sglang with its dependencies, and returns the command that starts it.

Runs outside of the engine's process.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from paritybit.drive.environment import Environment, options, variables, with_transformers
from paritybit.drive.legs import Leg
from paritybit.drive.script import Script, Setting

REAL_DRAFTS = "SGLANG_SIMULATE_ACC_TOKEN_MODE"
"""The variable that makes an engine accept the draft's own tokens."""

CUDA_ALONE = "sglang/srt/speculative/spec_utils.py", 'device="cuda"'
"""A file of the engine, and text in it if this works only on CUDA."""

SLIDING_DRAFTS = "sglang/srt/layers/attention/triton_backend.py", "window_rail"
"""A file of the engine, and a name in it if draft models may have sliding windows."""

FROZEN_DRAFTS = "sglang/srt/speculative/spec_info.py", "FROZEN_KV_MTP"
"""A file of the engine, and a name in it if draft models may read the target's KV."""

FROZEN_IN_TURN = FROZEN_DRAFTS[0], "FROZEN_KV_MTP does not support spec v2"
"""The same file, and text in it if batches with such drafts must not overlap."""

TRANSFORMERS = re.compile(r"transformers\s*==\s*([0-9.]+)")


def prepare(spec: str) -> Environment:
    """Return the engine of `sglang==VERSION` or of a folder, with the packages it imports."""
    return with_transformers(spec, wanted_transformers)


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


def command(
    environment: Environment, leg: Leg, seed: int, device: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command that serves a row, and its environment variables."""
    return _started(environment, options(leg, seed, device), device, leg.settings)


def playing(
    environment: Environment, script: Script, words: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command that serves a script, and its environment variables.

    `words` are the options with the file of the script.
    """
    settings = script.settings
    return _started(environment, words, str(settings.get("device")), settings)


def _started(
    environment: Environment,
    words: Sequence[str],
    device: str,
    settings: Mapping[str, Setting],
) -> tuple[list[str], dict[str, str]]:
    speculative = settings.get("speculative")
    chain = speculative == "eagle" and settings.get("topk", 1) == 1
    sliding = speculative == "standalone" and says(environment.source, *SLIDING_DRAFTS)
    drafts = acceptance(environment.source, device) if chain else {}
    # By default, slots outside a window are freed every 128 tokens, which is 8 of our windows.
    often = {"SGLANG_SWA_EVICTION_INTERVAL": "8"}
    return (
        [
            *(sys.executable, "-m", "paritybit.drive.sglang", *words),
            *(("--sliding-draft",) if sliding else ()),
            *frozen_drafts(environment.source),
        ],
        {**often, **drafts, **variables(environment, device, os.environ)},
    )


def frozen_drafts(source: Path) -> Sequence[str]:
    """Return the option for drafts that read the target's KV, if the release supports them."""
    if not says(source, *FROZEN_DRAFTS):
        return ()
    return "--frozen-draft", "in turn" if says(source, *FROZEN_IN_TURN) else "overlapping"


def acceptance(source: Path, device: str) -> dict[str, str]:
    """Return the environment variables that make an engine accept drafts of random models.

    The accepted tokens are the draft's own, so the KV matches the tokens of the request. Nothing is
    changed for releases that would accept other tokens, or for trees of drafts.
    """
    if not says(source, "sglang/srt/environ.py", REAL_DRAFTS):
        return {}
    if device == "cpu" and says(source, *CUDA_ALONE):
        return {}
    return {
        "SGLANG_SIMULATE_ACC_LEN": "2.5",
        "SGLANG_SIMULATE_ACC_METHOD": "multinomial",
        REAL_DRAFTS: "real-draft-token",
    }


def says(source: Path, file: str, words: str) -> bool:
    """Return whether a file of an engine's source contains a text."""
    path = source / file
    return path.is_file() and words in path.read_text(encoding="utf-8")
