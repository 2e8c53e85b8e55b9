"""Measures the cost of checksums for `paritybit bench`.

Bandwidths are in GB/s. A copy counts the bytes that it reads and the bytes that it writes.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from paritybit.watch.bits import Checksums
from paritybit.watch.facts import Group, Layer
from paritybit.watch.ledger import Ledger, Names

LAYERS, HEADS, WIDTH = 60, 8, 128

COPIED = 2**33
"""The largest copy in bytes. It needs twice as much memory."""


def pool(gib: float, device: str) -> Group:
    """Return a group of LAYERS layers of bfloat16 with a total size of `gib` GiB."""
    slots = max(64, int(gib * 2**30 / (LAYERS * 2 * HEADS * WIDTH * 2)))

    def tensor() -> torch.Tensor:
        made = torch.empty(slots, HEADS, WIDTH, dtype=torch.bfloat16, device=device)
        return made.view(torch.int16).random_(0, 2**15 - 1).view(torch.bfloat16)

    return Group("pool", tuple(Layer(str(n), (tensor(), tensor())) for n in range(LAYERS)))


def seconds(run: Callable[[], object], device: str, repeats: int) -> float:
    """Return the median time of a call in seconds, after one call that is not measured."""

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    run()
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def copy_bandwidth(size: int, device: str, repeats: int) -> float:
    """Return the bandwidth of a copy of `size` bytes in GB/s."""
    source = torch.ones(size // 8, dtype=torch.int64, device=device)
    target = torch.empty_like(source)
    taken = seconds(lambda: target.copy_(source), device, repeats)
    return 2 * source.nbytes / taken / 1e9


def measured(gib: float, device: str, repeats: int) -> dict[str, Any]:
    """Return the measurements for a pool of `gib` GiB."""
    copied = min(COPIED, max(2**20, int(gib * 2**30 / 4)))
    copy = copy_bandwidth(copied, device, repeats)
    group = pool(gib, device)
    checksums = Checksums(group)
    size = checksums.slots * checksums.bytes_per_slot
    shuffled = torch.randperm(checksums.slots).to(device)
    frame = size / seconds(checksums.all, device, repeats) / 1e9
    reads = size / seconds(lambda: checksums.of(shuffled), device, repeats) / 1e9
    ledger = Ledger(group, Names())
    taken = sum(column.nbytes for column in ledger.columns())
    return {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "torch": torch.__version__,
        "kernel": "triton" if checksums.fast is not None else "torch",
        "pool_gib": round(size / 2**30, 3),
        "slots": checksums.slots,
        "bytes_per_slot": checksums.bytes_per_slot,
        "copy_gb_per_s": round(copy, 1),
        "frame_gb_per_s": round(frame, 1),
        "reads_gb_per_s": round(reads, 1),
        "frame_over_copy": round(frame / copy, 3),
        "reads_over_copy": round(reads / copy, 3),
        "ledger_frame_ms": round(seconds(ledger.frame, device, repeats) * 1e3, 3),
        "ledger_bytes_per_slot": taken / checksums.slots,
    }
