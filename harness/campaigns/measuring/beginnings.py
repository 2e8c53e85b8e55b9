"""Measures how many processes per second can initialise CUDA at the same time.

A run starts fresh processes all the time. The measurement uses CUDA's default number of connections
to the GPU, and the single one that fresh processes use.
"""

import os
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from paritybit.harness.campaigns.measuring.sharing import ways
from paritybit.harness.machine.forks import Forked, preload
from paritybit.harness.machine.workers import processes_on

ROUNDS = 3
"""The number of repetitions. The result is the median."""

ANSWER_SECONDS = 120.0
"""The time limit in seconds for a process to initialise, or to end."""

CONNECTIONS = 8, 1
"""Values of CUDA_DEVICE_MAX_CONNECTIONS to measure. CUDA's default is 8."""


def begin(pipe: Connection, device: str) -> None:
    """Initialise the device, report it, and wait until the pipe is closed."""
    torch.zeros(1, device=device).item()
    pipe.send(device)
    pipe.poll(None)


def begun_per_second(device: str, processes: int, connections: int) -> float | None:
    """Return how many processes per second initialise a device, or None if one fails."""
    variables = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": str(connections)}
    started = time.perf_counter()
    beginning = [Forked(begin, device, variables=variables) for _ in range(processes)]
    try:
        for process in beginning:
            if not process.pipe.poll(ANSWER_SECONDS):
                return None
            process.pipe.recv()
        return processes / (time.perf_counter() - started)
    except (EOFError, OSError):
        return None
    finally:
        for process in beginning:
            process.pipe.close()
        for process in beginning:
            process.join(ANSWER_SECONDS)


def beginnings(device: str) -> Iterator[dict[str, Any]]:
    """Yield the rate for as many processes as share one GPU, with and without MPS.

    Yields nothing without CUDA, and nothing under MPS if no daemon can be started.
    """
    if device != "cuda":
        return
    preload([__name__])
    for way in ways(device):
        if way.error is not None:
            continue
        processes = processes_on(device, 1, mps=way.mps)
        for connections in CONNECTIONS:
            rates = [begun_per_second(device, processes, connections) for _ in range(ROUNDS)]
            begun = [rate for rate in rates if rate is not None]
            yield {
                "processes": processes,
                "gpus": 1,
                "mps": way.mps,
                "connections": connections,
                "begun_per_second": round(statistics.median(begun), 1)
                if len(begun) == ROUNDS
                else None,
            }
