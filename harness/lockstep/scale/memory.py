"""What a trial needs of memory, before any is allocated."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from paritybit.harness.errors import CannotRunError
from paritybit.harness.lockstep.config import DTYPES, TrialConfig
from paritybit.harness.machine.gpus import free_memory
from paritybit.reference.config import Shape, draft_config
from paritybit.reference.model import weight_elements

GIB = 2**30

COPIES = 4
"""Copies of a world's KV that a pair keeps around a step, if the pools can be copied."""

WEIGHTS = 4
"""Copies of the weights if the pools can be copied.

One is the reference's, and one each is the subject's, the fresh engine's and that of the engine
without the bug.
"""

WIDEST_ROWS = 64
"""Rows of float32 logits that one forward of the largest bucket allocates in total."""

KEY_LISTS = 6
"""Lists of 64-bit numbers in the engines' static buffers, each as long as all contexts together."""

SCRATCH = {"cpu": GIB // 4, "cuda": 3 * GIB}
"""Bytes that a process needs for CUDA, compiled kernels and captures, by device."""

HOST_SCRATCH = 3 * GIB
"""Host memory in bytes that a process with a GPU needs in addition to its tables."""

CGROUP = Path("/sys/fs/cgroup")


def needs_of(trial: TrialConfig) -> Mapping[str, int]:
    """Return the bytes that a trial needs on its device, by purpose."""
    model, itemsize = trial.model, DTYPES[trial.dtype].itemsize
    elements = weight_elements(model) + weight_elements(draft_config(model))
    tables = trial.rows * model.max_context * 8 * KEY_LISTS * 2
    slots = 3 * 4 * (trial.full_slots + trial.rows * model.max_context)
    return {
        "KV for the eager and graph runs": 2 * trial.world_bytes,
        "copies of it": 0 if trial.large else (COPIES + 2) * trial.world_bytes,
        "weights": elements * itemsize * (1 if trial.large else WEIGHTS),
        "tables and lists": tables + slots,
        "logits and scratch": WIDEST_ROWS * model.vocab * 4 * 4 + SCRATCH[trial.device],
    }


def host_needs(trial: TrialConfig) -> int:
    """Return the bytes of the host's memory that a trial on a GPU needs."""
    cells = trial.full_slots + (trial.rows + 1) * trial.model.max_context
    return HOST_SCRATCH + 2 * 2 * 3 * 4 * cells


def most_processes(trial: TrialConfig) -> int:
    """Return how many processes with a trial each fit into this machine's memory.

    On GPUs, the driver reports the memory, because this process must not initialise CUDA. If it
    does not, the result is one per GPU. Raises CannotRunError if not even one fits.
    """
    needed, host = sum(needs_of(trial).values()), free_on_host()
    if trial.device != "cuda":
        require(trial, needs_of(trial), host, "host memory")
        return host // needed
    free = free_memory() or [needed]
    require(trial, needs_of(trial), max(free), "GPU memory")
    on_gpus = len(free) * max(1, min(size // needed for size in free))
    require(trial, {"tables and lists": host_needs(trial)}, host, "host memory")
    return min(on_gpus, host // host_needs(trial))


def require_memory(trial: TrialConfig) -> None:
    """Raise CannotRunError if there is too little memory for a trial.

    Trials of the shape tiny are not checked, because they fit anywhere.
    """
    if trial.shape == Shape.TINY:
        return
    needs = needs_of(trial)
    if trial.device == "cuda":
        require(trial, needs, free_on_gpu(), "GPU memory")
        require(trial, {"tables and lists": host_needs(trial)}, free_on_host(), "host memory")
        return
    require(trial, needs, free_on_host(), "host memory")
    if trial.shape == Shape.REAL:
        raise CannotRunError(
            f"{trial.preset} at shape {trial.shape} needs a GPU because one step would "
            "take minutes on a CPU; valid on this device: tiny, mid"
        )


def require(trial: TrialConfig, needs: Mapping[str, int], free: int, what: str) -> None:
    """Raise CannotRunError if `needs` exceed the `free` bytes. `what` names the memory."""
    needed = sum(needs.values())
    if needed <= free:
        return
    parts = ", ".join(f"{in_gib(size)} {name}" for name, size in needs.items() if size >= GIB // 10)
    raise CannotRunError(
        f"{trial.preset} at shape {trial.shape} needs {in_gib(needed)} GiB of {what} "
        f"({parts}), but only {in_gib(free)} GiB is free"
    )


def in_gib(size: int) -> str:
    """Return bytes as text in GiB with one decimal."""
    return f"{size / GIB:.1f}"


def free_on_gpu() -> int:
    """Return the bytes that this process could still allocate on its GPU."""
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def free_on_host() -> int:
    """Return the free bytes of host memory, or those left in the process's control group."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = _available()
    limit, used = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    found = max(free, available)
    return found if limit is None or used is None else min(found, max(0, limit - used))


def _available() -> int:
    """Return the kernel's MemAvailable in bytes, or 0 if it is not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else 0


def _number(path: Path) -> int | None:
    """Return the integer in a file, or None if there is no file or no integer in it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
