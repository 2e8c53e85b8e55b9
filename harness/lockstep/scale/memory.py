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
"""Copies of a world's KV that a pair keeps around a step, where it can be copied."""

WIDEST_ROWS = 64
"""Rows of logits, float32, that one forward of the largest bucket makes in all its parts."""

KEY_LISTS = 6
"""Lists of 64-bit numbers, as long as all requests' contexts, in the engines' static buffers."""

SCRATCH = {"cpu": GIB // 4, "cuda": 3 * GIB}
"""What a process needs beside all that: CUDA itself, compiled kernels, what captures leave."""

HOST_SCRATCH = 3 * GIB
"""What a process that drives a GPU needs of the host's memory beside its tables."""

CGROUP = Path("/sys/fs/cgroup")


def needs_of(trial: TrialConfig) -> Mapping[str, int]:
    """Return the bytes that a trial's device must have, by what they are for."""
    model, itemsize = trial.model, DTYPES[trial.dtype].itemsize
    elements = weight_elements(model) + weight_elements(draft_config(model))
    tables = trial.rows * model.max_context * 8 * KEY_LISTS * 2
    slots = 3 * 4 * (trial.full_slots + trial.rows * model.max_context)
    return {
        "KV for the eager and graph runs": 2 * trial.world_bytes,
        "copies of it": 0 if trial.large else (COPIES + 2) * trial.world_bytes,
        "weights": elements * itemsize,
        "tables and lists": tables + slots,
        "logits and scratch": WIDEST_ROWS * model.vocab * 4 * 4 + SCRATCH[trial.device],
    }


def host_needs(trial: TrialConfig) -> int:
    """Return the bytes of the host's memory that a trial on a GPU needs."""
    cells = trial.full_slots + (trial.rows + 1) * trial.model.max_context
    return HOST_SCRATCH + 2 * 2 * 3 * 4 * cells


def most_processes(trial: TrialConfig) -> int:
    """Return how many processes this machine's memory holds, each with a trial of its own.

    On GPUs the driver is asked: this process must not begin CUDA. Where it does not say, one for
    each GPU. Raises CannotRunError where memory does not hold one.
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
    """Raise CannotRunError where a trial of another shape than tiny has too little memory.

    Nothing is asked for a tiny one, which fits anywhere.
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
    """Raise CannotRunError unless so many bytes are enough."""
    needed = sum(needs.values())
    if needed <= free:
        return
    parts = ", ".join(f"{in_gib(size)} {name}" for name, size in needs.items() if size >= GIB // 10)
    raise CannotRunError(
        f"{trial.preset} at shape {trial.shape} needs {in_gib(needed)} GiB of {what} "
        f"({parts}), but only {in_gib(free)} GiB is free"
    )


def in_gib(size: int) -> str:
    """Return bytes in GiB, with one digit."""
    return f"{size / GIB:.1f}"


def free_on_gpu() -> int:
    """Return the bytes that this process could still allocate on its GPU."""
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def free_on_host() -> int:
    """Return the bytes of the host's memory that are free, or that its control group leaves."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = _available()
    limit, used = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    found = max(free, available)
    return found if limit is None or used is None else min(found, max(0, limit - used))


def _available() -> int:
    """Return what the kernel says could be allocated, caches given up; 0 where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else 0


def _number(path: Path) -> int | None:
    """Return the whole number in a file; None where there is no file, or no number."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
