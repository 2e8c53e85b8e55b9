"""How fast two storages are compared, beside a copy of the same memory in the same run.

As pools too large to be copied are compared at each step: in one pass, which says how much
differs and where first, reserved slots apart.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from paritybit.harness.lockstep.scale.comparison import RESERVED, compare

BYTES = {"cpu": 2**26, "cuda": 2**33}
"""Size of one storage, many times a cache; on a GPU, with more than 2^31 elements."""

SLOT = (8, 256)
"""Heads of a slot's K, and their width, in bfloat16: those of gemma3's real model."""

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
    slots = BYTES[device] // (2 * 2 * SLOT[0] * SLOT[1])
    one = torch.zeros((1, 2, slots, *SLOT), dtype=torch.bfloat16, device=device)
    other = one.clone()
    marks = torch.zeros(slots, dtype=torch.uint8, device=device)
    marks[0] = RESERVED
    moved = 2 * one.nbytes / 1e9
    compared = moved / seconds_of(lambda: compare(one, other, marks), device)
    copied = moved / seconds_of(lambda: other.copy_(one), device)
    return {
        "bytes": BYTES[device],
        "comparison_gb_per_second": round(compared, 2),
        "copy_gb_per_second": round(copied, 2),
        "comparison_over_copy": round(compared / copied, 3),
    }
