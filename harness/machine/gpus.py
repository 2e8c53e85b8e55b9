"""The GPUs that a process may use, without CUDA and without torch.

A process that has begun CUDA can be pinned to a GPU no more, so whoever counts GPUs must not
begin it. The driver's own program is asked; where it is missing, its device files are counted.
"""

import os
import re
import subprocess
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that says which GPUs CUDA sees, by index or by UUID."""

DEVICE_FILES = Path("/dev")

ASK_SECONDS = 60.0
"""How long the driver may take to name its GPUs: many times what it does."""


def listed_gpus() -> list[tuple[str, str]]:
    """Return the name and UUID of each GPU here, '' where unknown, in the driver's order."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=ASK_SECONDS
        )
    except FileNotFoundError:
        return [("", "") for _ in DEVICE_FILES.glob("nvidia[0-9]*")]
    except (OSError, subprocess.SubprocessError):
        return []
    return re.findall(r"^GPU \d+: (.*?) \(UUID: (.*?)\)", listed.stdout, re.M)


def free_memory() -> list[int]:
    """Return the bytes that are free on each GPU that this process may use; none where unknown."""
    asked = "--query-gpu=index,uuid,memory.free", "--format=csv,noheader,nounits"
    try:
        told = subprocess.run(
            ["nvidia-smi", *asked], capture_output=True, text=True, check=True, timeout=ASK_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = re.findall(r"^(\d+), (\S+), (\d+)$", told.stdout, re.M)
    visible = visible_gpus()
    return [
        int(mebibytes) * 2**20
        for index, uuid, mebibytes in rows
        if any(name == index or uuid.startswith(name) for name in visible)
    ]


def gpu_names() -> list[str]:
    """Return what the machine's GPUs are called, in the driver's order."""
    return [name or "NVIDIA GPU" for name, _ in listed_gpus()]


def first_name() -> str | None:
    """Return what the first GPU is called that this process may use; None where that is unknown."""
    visible, listed = visible_gpus(), listed_gpus()
    for place, (name, uuid) in enumerate(listed):
        if visible and (visible[0] == str(place) or uuid.startswith(visible[0])):
            return name or None
    return None


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    present = [str(index) for index, _ in enumerate(gpu_names())]
    named = os.environ.get(VISIBLE)
    if named is None or not present:
        return present
    entries = [entry.strip() for entry in named.split(",")]
    if len(set(entries)) < len(entries):
        return []  # As CUDA reads it: where one is named twice, none is visible.
    # As CUDA reads it: whatever follows the first entry that names no GPU does not count.
    valid = [entry in present or entry.startswith(("GPU-", "MIG-")) for entry in entries]
    return entries[: valid.index(False)] if False in valid else entries
