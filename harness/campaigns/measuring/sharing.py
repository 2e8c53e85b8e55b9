"""How many differential steps processes do together: the trial that numbers of workers rest on.

Every process captures the same trial and waits until all others have; then all play the
benchmark's schedule for the same time. `harness/machine/workers.py` holds what came of it.
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
"""How long the processes play together."""

START_SECONDS = 240.0
"""How long they may take until all have captured their trial."""

FEW = (1, 4, 8)
"""Numbers of processes that are tried on a GPU, besides those that the cores suggest."""

PRESET = "gemma3"


@dataclass(frozen=True)
class Share:
    """One of so many processes that play at a time, and the folder in which they meet."""

    place: int
    processes: int
    device: str
    folder: str
    seconds: float


@dataclass(frozen=True)
class Rate:
    """What one process played beside the others."""

    steps: int
    seconds: float
    spoiled: bool = False


def play_beside(share: Share) -> Rate:
    """Capture a trial, wait for the others, and play for the time given.

    Raises RuntimeError where another one never gets ready, or the playing is not clean.
    """
    lockstep, schedule = Lockstep(bench_trial(PRESET, share.device)), workload()
    played(lockstep, schedule)
    meet(Path(share.folder), share.place, share.processes)
    started, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < share.seconds or not steps:
        steps += played(lockstep, schedule).outcome.steps
    return Rate(steps, elapsed)


def meet(folder: Path, place: int, processes: int) -> None:
    """Say that the process at a place is ready, and wait until all are. Raises RuntimeError."""
    (folder / str(place)).touch()
    deadline = time.monotonic() + START_SECONDS
    while len(list(folder.iterdir())) < processes:
        if time.monotonic() > deadline:
            raise RuntimeError(f"fewer than {processes} processes got ready to play")
        time.sleep(0.01)


PLAYING = Campaign(
    play_beside, shared=lambda share: share, seconds=lambda share: START_SECONDS + 60
)
"""How the processes are run: each has one share."""


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
        # What a daemon's other clients do is what is measured: nothing is played again alone.
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
    """Return the numbers of processes that are worth measuring here."""
    if device != "cuda":
        return sorted({1, cores()})
    best = {processes_on(device, gpus, mps=shared) for shared in (False, True)}
    return sorted(count for count in {*FEW, *best} if count <= cores())


@dataclass(frozen=True)
class Way:
    """How processes share a GPU: whether by an MPS daemon, and if none can start, why."""

    mps: bool
    error: str | None = None


def ways(device: str) -> Iterator[Way]:
    """Yield each way in which processes can share a GPU here; a daemon runs while it is needed.

    One that ran before is the only way, and is left as it is.
    """
    here = workers_for(device)
    for shared in [here.mps] if here.mps or device != "cuda" else [False, True]:
        try:
            with mps.private_daemon(device) if shared and not here.mps else nullcontext():
                yield Way(shared)
        except CannotRunError as error:
            yield Way(shared, str(error))


def sharing_rates(device: str, numbers: Sequence[int] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rate of each number of processes: on one GPU and on all, without MPS and with.

    Where no daemon of its own can be started, an entry says why.
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
