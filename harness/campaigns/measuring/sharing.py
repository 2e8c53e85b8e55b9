"""Measures the differential steps per second of several processes on shared devices.

Each process captures the same trial and waits for the others. Then all play the benchmark's
schedule for the same time. `harness/machine/workers.py` has the results.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paritybit.harness.campaigns.bench import bench_trial, played, workload
from paritybit.harness.campaigns.executor import Campaign, Ended, execute
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.errors import CannotRunError, headline
from paritybit.harness.machine import mps
from paritybit.harness.machine.workers import Workers, cores, processes_on, sparing, workers_for

SECONDS = 5.0
"""Seconds for which the processes play together."""

START_SECONDS = 240.0
"""The time limit in seconds until all have captured their trial."""

FEW = (1, 4, 8)
"""Numbers of processes to try on a GPU, in addition to those that the cores suggest."""

PRESET = "gemma3"


@dataclass(frozen=True)
class Share:
    """One of the processes that play at the same time, and the folder in which they meet."""

    place: int
    processes: int
    device: str
    folder: str
    seconds: float


@dataclass(frozen=True)
class Rate:
    """The steps of one process and their duration."""

    steps: int
    seconds: float
    spoiled: bool = False


def play_beside(share: Share) -> Rate:
    """Capture a trial, wait for the other processes, and play for the given time.

    Raises RuntimeError if another process does not get ready or a property is violated.
    """
    lockstep, schedule = Lockstep(bench_trial(PRESET, share.device)), workload()
    played(lockstep, schedule)
    meet(Path(share.folder), share.place, share.processes)
    started, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < share.seconds or not steps:
        steps += played(lockstep, schedule).outcome.steps
    return Rate(steps, elapsed)


def meet(folder: Path, place: int, processes: int) -> None:
    """Report that this process is ready, and wait for all. Raises RuntimeError after a timeout."""
    (folder / str(place)).touch()
    deadline = time.monotonic() + START_SECONDS
    while len(list(folder.iterdir())) < processes:
        if time.monotonic() > deadline:
            raise RuntimeError(f"fewer than {processes} processes got ready to play")
        time.sleep(0.01)


PLAYING = Campaign(
    play_beside, shared=lambda share: share, seconds=lambda share: START_SECONDS + 60
)
"""Runs each process with its share."""


def rate_of(workers: Workers, device: str) -> dict[str, Any]:
    """Return the differential steps per second of all workers together, as JSON data."""
    rates: list[Rate] = []
    errors: list[str] = []

    def on_end(ended: Ended[Share, Rate]) -> None:
        if ended.result is not None:
            rates.append(ended.result)
        else:
            errors.append(ended.error or "")

    with tempfile.TemporaryDirectory(prefix="paritybit-") as folder:
        shares = [
            Share(place, workers.processes, device, folder, SECONDS)
            for place in range(workers.processes)
        ]
        # Other clients of the daemon are part of the measurement: no task is rerun alone.
        execute(PLAYING, shares, replace(sparing(workers, device), mps=False), on_end)
    return {
        "device": device,
        "processes": workers.processes,
        "gpus": len(workers.gpus),
        "mps": workers.mps,
        "steps_per_second": None
        if errors
        else round(sum(rate.steps / rate.seconds for rate in rates), 1),
        "error": headline(errors[0]) if errors else None,
    }


def numbers_for(device: str, gpus: int) -> list[int]:
    """Return the numbers of processes to measure on this machine."""
    if device != "cuda":
        return sorted({1, cores()})
    best = {processes_on(device, gpus, mps=shared) for shared in (False, True)}
    return sorted(count for count in {*FEW, *best} if count <= cores())


@dataclass(frozen=True)
class Way:
    """Whether processes share a GPU by MPS, and the reason if no daemon can start."""

    mps: bool
    error: str | None = None


def ways(device: str) -> Iterator[Way]:
    """Yield each way in which processes can share a GPU here. A daemon runs while it is needed.

    If a daemon already runs, the only way is to use it. It is not stopped.
    """
    here = workers_for(device)
    for shared in [here.mps] if here.mps or device != "cuda" else [False, True]:
        try:
            with mps.private_daemon(device) if shared and not here.mps else nullcontext():
                yield Way(shared)
        except CannotRunError as error:
            yield Way(shared, str(error))


def sharing_rates(device: str, numbers: Sequence[int] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rate for each number of processes, on one GPU and all, with and without MPS.

    If no daemon can be started, one entry has the reason.
    """
    gpus = workers_for(device).gpus
    spreads = [gpus[:1], gpus] if len(gpus) > 1 else [gpus]
    for way in ways(device):
        if way.error is not None:
            yield {"device": device, "mps": way.mps, "steps_per_second": None, "error": way.error}
            continue
        for spread in spreads:
            for count in numbers or numbers_for(device, len(spread)):
                yield rate_of(Workers(count, spread, way.mps), device)
