"""The GPUs that a process may use, found without CUDA and torch.

A process that has initialised CUDA can no longer be pinned to a GPU, so counting must not do it.
The GPUs come from `nvidia-smi` or, if it is missing, from the driver's device files.
"""

import os
import re
import subprocess
from pathlib import Path

from paritybit.harness.errors import CannotRunError

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable with the GPUs that CUDA sees, by index or UUID."""


def listed_gpus() -> list[tuple[str, str]]:
    """Return name and UUID of each GPU in the driver's order. '' if unknown."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60
        )
    except FileNotFoundError:
        return [("", "") for _ in Path("/dev").glob("nvidia[0-9]*")]
    except (OSError, subprocess.SubprocessError):
        return []
    return re.findall(r"^GPU \d+: (.*?) \(UUID: (.*?)\)", listed.stdout, re.M)


def first_name() -> str | None:
    """Return the name of the first GPU that this process may use, or None if unknown."""
    visible, listed = visible_gpus(), listed_gpus()
    for place, (name, uuid) in enumerate(listed):
        if visible and (visible[0] == str(place) or uuid.startswith(visible[0])):
            return name or None
    return None


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    present = [str(index) for index, _ in enumerate(listed_gpus())]
    named = os.environ.get(VISIBLE)
    if named is None or not present:
        return present
    entries = [entry.strip() for entry in named.split(",")]
    if len(set(entries)) < len(entries):
        return []  # As in CUDA: with a duplicate, no GPU is visible.
    # As in CUDA: entries after the first invalid one are ignored.
    valid = [entry in present or entry.startswith(("GPU-", "MIG-")) for entry in entries]
    return entries[: valid.index(False)] if False in valid else entries


def device_of(asked: str) -> str:
    """Return cpu or cuda for auto, cpu or cuda. Raises CannotRunError for cuda without a GPU."""
    gpus = bool(visible_gpus())
    if asked == "cuda" and not gpus:
        raise CannotRunError("--device cuda needs a GPU, but none is visible")
    return ("cuda" if gpus else "cpu") if asked == "auto" else asked
