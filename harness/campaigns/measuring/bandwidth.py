"""How fast two storages are compared, beside a copy of the same memory in the same run."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from harness.lockstep.bits import differ

BYTES = {"cpu": 2**26, "cuda": 2**30}
"""Size of one storage, many times a cache."""

REPEATS = 7


def seconds_of(run: Callable[[], object], device: str) -> float:
    """Return the seconds that something takes on a device, the median of some runs."""
    taken = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def bandwidths(device: str) -> dict[str, Any]:
    """Return the bandwidths of a comparison and of a copy, in GB/s, and the one over the other.

    Both move as many bytes: a comparison reads two storages, a copy reads one and writes one.
    """
    one = torch.zeros(BYTES[device] // 4, device=device)
    other = one.clone()
    moved = 2 * BYTES[device] / 1e9
    compared = moved / seconds_of(lambda: differ(one, other), device)
    copied = moved / seconds_of(lambda: other.copy_(one), device)
    return {
        "bytes": BYTES[device],
        "comparison_gb_per_second": round(compared, 2),
        "copy_gb_per_second": round(copied, 2),
        "comparison_over_copy": round(compared / copied, 3),
    }
