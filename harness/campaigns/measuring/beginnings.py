"""How many processes a second begin CUDA when many do so at the same time.

Fresh processes begin throughout a run. It is measured with as many connections to the GPU as CUDA
lets a process open by itself, and with the one that fresh processes may open.
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
"""How often all begin; the median counts."""

ANSWER_SECONDS = 120.0
"""How long a process may take to begin, or to end."""

CONNECTIONS = 8, 1
"""Values of CUDA_DEVICE_MAX_CONNECTIONS that are measured; 8 is CUDA's own."""


def begin(pipe: Connection, device: str) -> None:
    """Use the device for the first time in this process, say so, and stay until nobody listens."""
    torch.zeros(1, device=device).item()
    pipe.send(device)
    pipe.poll(None)


def begun_per_second(device: str, processes: int, connections: int) -> float | None:
    """Return how many of so many processes begin on a device in a second; None if one cannot."""
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
    """Yield how many processes a second begin, of as many as share one GPU here, each way.

    Without CUDA there is nothing to measure; nor under MPS where no daemon can be started.
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
