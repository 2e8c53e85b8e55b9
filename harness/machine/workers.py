"""The number of worker processes, and the GPU of each."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from paritybit.harness.machine import mps
from paritybit.harness.machine.gpus import visible_gpus

PLAIN: Mapping[int, float] = {1: 193, 4: 421, 8: 528, 15: 586}
UNDER_MPS: Mapping[int, float] = {1: 202, 4: 826, 8: 1807, 15: 3077}
"""Differential steps per second of all processes together, by the number that share one GPU.

Measured with decode, gemma3, 8 rows and all checks of steps on one NVIDIA H200 with 16 cores. The
record is `reports/evidence/h200/bench.json`. A step is limited by the host, so more processes help.
Without MPS they take turns on the GPU, with MPS their kernels overlap.
"""

ENOUGH = 0.9
"""The smallest number of processes with this share of the best rate is used, to save memory."""

SHARING_PLAINLY = min(
    count for count, rate in PLAIN.items() if rate >= ENOUGH * max(PLAIN.values())
)
"""The number of processes that share one GPU without MPS."""

MOST_CLIENTS = 48
"""The maximum number of MPS clients on one GPU, as documented by NVIDIA."""

SHARING_UNDER_MPS = MOST_CLIENTS // 2
"""The number of workers that share one GPU under MPS. Each may also have a fresh process."""


@dataclass(frozen=True)
class Workers:
    """The worker processes of a campaign. They are assigned to the GPUs in turn.

    - `processes`: their number. With 0, this process does the work.
    - `gpus`: names as in CUDA_VISIBLE_DEVICES. If empty, no process is pinned.
    - `mps`: whether an MPS daemon answers. A process that loses its device may then take others on
      the same GPU with it.
    - `again`: the tasks that were rerun, each with the end of its first run. Copies of these
      workers share the list.
    """

    processes: int
    gpus: tuple[str, ...] = ()
    mps: bool = False
    again: list[tuple[str, str]] = field(default_factory=list, compare=False, repr=False)

    def pin(self, place: int) -> str | None:
        """Return the GPU of a process, or None if it is not pinned. `place` counts from 0."""
        return self.gpus[place % len(self.gpus)] if self.gpus else None

    def at_most(self, tasks: int) -> "Workers":
        """Return these workers, but not more than there are tasks."""
        return replace(self, processes=min(self.processes, max(1, tasks)))


HERE, ONE = Workers(0), Workers(1)
"""The work is done in this process, or in one worker process."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processes_on(device: str, gpus: int, *, mps: bool) -> int:
    """Return the best number of processes for a device and the cores available here.

    On a CPU it is one per core. On GPUs one core is left for this process, and the number per GPU
    is limited.
    """
    if device != "cuda":
        return cores()
    sharing = SHARING_UNDER_MPS if mps else SHARING_PLAINLY
    return max(1, min(cores() - 1, sharing * max(1, gpus)))


def workers_for(device: str, asked: int | None = None) -> Workers:
    """Return the requested number of workers, or the best number, on the GPUs found here."""
    if device != "cuda":
        return Workers(asked or processes_on(device, 0, mps=False))
    gpus, shared = tuple(visible_gpus()), mps.answers()
    return Workers(asked or processes_on(device, len(gpus), mps=shared), gpus, shared)


def sparing(workers: Workers, device: str) -> Workers:
    """Return the workers of a cheap campaign: none if one on a CPU would be enough.

    Starting a process takes seconds. On cuda a task needs one, because it may lose its device.
    """
    alone = workers.processes == 1 and device == "cpu"
    return replace(workers, processes=0) if alone else workers
