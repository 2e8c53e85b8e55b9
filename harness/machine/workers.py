"""How many processes share the work, and which GPU each of them uses."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from paritybit.harness.machine import mps
from paritybit.harness.machine.gpus import visible_gpus

PLAIN: Mapping[int, float] = {1: 193, 4: 421, 8: 528, 15: 586}
UNDER_MPS: Mapping[int, float] = {1: 202, 4: 826, 8: 1807, 15: 3077}
"""Differential steps per second of all processes together, by how many share one GPU.

Measured with lockstep (decode, gemma3, 8 rows, every per-step check on) on one NVIDIA H200 with
16 cores: the record is `reports/evidence/h200/bench.json`, which `paritybit bench --device cuda`
makes again. A step is bound by its host, so that more processes help; plainly they take turns on
the GPU, under MPS their kernels overlap.
"""

ENOUGH = 0.9
"""As few processes are used as reach this share of the best rate: more would only cost memory."""

SHARING_PLAINLY = min(
    count for count, rate in PLAIN.items() if rate >= ENOUGH * max(PLAIN.values())
)
"""Processes that share one GPU without MPS."""

MOST_CLIENTS = 48
"""Processes that MPS lets share one GPU, as NVIDIA documents it."""

SHARING_UNDER_MPS = MOST_CLIENTS // 2
"""Workers that share one GPU under MPS: each may have a fresh process beside it."""


LOCAL = "local"
"""The cluster that is started on this machine for a campaign alone."""


@dataclass(frozen=True)
class Workers:
    """So many processes, which take the GPUs in turn; with 0 the work is done in this process.

    `gpus` are named as CUDA_VISIBLE_DEVICES names them; without any no process is pinned.
    `mps` says whether an MPS daemon answers: then one process that loses its device may take
    others on its GPU along. `cluster` is the address of a Ray cluster that the processes belong
    to, or LOCAL; None is this machine without Ray. `journal` is the file that keeps what has
    ended, and has what had before. `again` takes note of what was run again, by what it is called
    and how it ended at first, for all workers that are made from these.
    """

    processes: int
    gpus: tuple[str, ...] = ()
    mps: bool = False
    cluster: str | None = None
    journal: Path | None = None
    again: list[tuple[str, str]] = field(default_factory=list, compare=False, repr=False)

    def pin(self, place: int) -> str | None:
        """Return the GPU of the process at a place, or None if it is not pinned."""
        return self.gpus[place % len(self.gpus)] if self.gpus else None

    def at_most(self, tasks: int) -> "Workers":
        """Return these, or as many as there are tasks, but one at least if any."""
        return replace(self, processes=min(self.processes, max(1, tasks)))


HERE, ONE = Workers(0), Workers(1)
"""The work is done in this process, or in one of its own."""


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processes_on(device: str, gpus: int, *, mps: bool) -> int:
    """Return how many processes do the most work on a device, with the cores available here.

    On a CPU that is one for each core. On GPUs it is one for each core but one, which this process
    needs, and no more on each GPU than can share it.
    """
    if device != "cuda":
        return cores()
    sharing = SHARING_UNDER_MPS if mps else SHARING_PLAINLY
    return max(1, min(cores() - 1, sharing * max(1, gpus)))


def workers_for(device: str, asked: int | None = None) -> Workers:
    """Return as many workers as were asked for, or as do the most work, on the GPUs found here."""
    if device != "cuda":
        return Workers(asked or processes_on(device, 0, mps=False))
    gpus, shared = tuple(visible_gpus()), mps.answers()
    return Workers(asked or processes_on(device, len(gpus), mps=shared), gpus, shared)


def sparing(workers: Workers, device: str) -> Workers:
    """Return the workers of a cheap campaign: none where one on a CPU would do.

    Starting a process costs seconds. On cuda a task needs one, for it may lose its device.
    """
    alone = workers.processes == 1 and device == "cpu" and workers.cluster is None
    return replace(workers, processes=0) if alone else workers
