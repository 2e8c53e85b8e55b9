"""Measures how fast two storages are compared, next to a copy of the same memory.

The comparison is that of `harness/lockstep/scale/comparison.py`, which pools too large to be copied
need at each step.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from paritybit.harness.lockstep.scale.comparison import RESERVED, compare

BYTES = {"cpu": 2**26, "cuda": 2**33}
"""Size of one storage: many times a cache, and on a GPU more than 2^31 elements."""

SLOT = (8, 256)
"""The number of K heads of a slot and their width in gemma3's real model, in bfloat16."""

REPEATS = 7


def seconds_of(run: Callable[[], object], device: str) -> float:
    """Return the median seconds of several runs of a function on a device."""
    taken = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def bandwidths(device: str) -> dict[str, Any]:
    """Return the bandwidths of a comparison and of a copy in GB/s, and their ratio.

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
