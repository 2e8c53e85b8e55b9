"""The number of worker processes."""

import os
import subprocess

SHARING = 8
"""The number of processes that share one GPU without MPS.

One H200 ran 193 differential steps per second with 1 process, 421 with 4, 528 with 8 and 586 with
15. See `reports/evidence/h200/bench.json`.
"""

SHARING_UNDER_MPS = 24
"""The number under MPS: half of the clients that NVIDIA allows.

Each process may have a second one, which plays a finding again.
"""


def mps_answers() -> bool:
    """Whether an MPS daemon answers to the processes that this one starts."""
    try:
        sent = subprocess.run(
            ["nvidia-cuda-mps-control"],
            input="get_server_list\n",
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return "Cannot find MPS control daemon" not in sent.stdout + sent.stderr


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
    sharing = SHARING_UNDER_MPS if mps else SHARING
    return max(1, min(cores() - 1, sharing * max(1, gpus)))
