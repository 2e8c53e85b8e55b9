"""Measures speed, and prints each figure next to its bound: `make bench`."""

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from paritybit.harness.checks.play import SchedulePlayer
from paritybit.harness.checks.table import CHEAP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig, resolve_device
from paritybit.harness.records.codec import save
from paritybit.harness.records.environment import environment
from paritybit.harness.schedules.schedule import Admit, Decode, Evict, Finish, Schedule, Step
from paritybit.reference.config import PRESETS
from paritybit.subjects.toggles import LocationScheme
from rich.console import Console
from rich.table import Table

from paritybit.watch.bits import Checksums
from paritybit.watch.checks import CHECKS
from paritybit.watch.facts import Group, Layer
from paritybit.watch.replays.relations import NAMES
from properties.support.places import ROOT

BOUNDS = {
    "pool on cuda: checksums / copy": 0.8,
    "sglang on a CPU: forwards/s, cheap checks": 110.0,
    "sglang on a CPU: watched / unwatched time": -1.3,
    "sglang on a CPU: seconds that watching adds to the start": -5.0,
}
"""The bounds: a minimum, or a negative number for a maximum."""

ROWS, DECODES, EVICT_EVERY, REPEATS = 8, 36, 6, 7
"""The schedule that is played, and how often."""

LAYERS, HEADS, WIDTH = 60, 8, 128
CPU_GIB, MOST_GIB, POOL_SHARE = 0.1, 60.0, 0.8
"""The pool whose checksums are measured: its size on a CPU, and at most on a GPU."""

SECONDS, SETTING = 40, "decode graphs"
"""A run of an engine, with its start."""

SERVED = re.compile(r"^\d+ forwards in ([\d.]+) s$", re.MULTILINE)
"""What the process of an engine prints at its end."""

CHEAP = tuple(name for name in CHECKS if name not in NAMES)
"""Checks that run no further forward pass."""

UNWATCHED = 1_000_000
"""Check one in so many forward passes: none but the first of a run."""


def bench(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    engine: Annotated[
        str | None, typer.Option(help="Also measure what watching this engine costs on a CPU")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Write the figures to this file")] = None,
) -> None:
    """Measure speed, and print each figure next to its bound."""
    device = resolve_device(device)
    figures = {f"{name}: differential steps/s": steps_per_second(name, device) for name in PRESETS}
    figures[f"pool on {device}: checksums / copy"] = checksums_over_copy(device)
    if engine is not None:
        figures |= watching(engine)
    Console().print(table(figures))
    if record is not None:
        save({"environment": environment(device), "figures": figures}, record)


def table(figures: dict[str, float]) -> Table:
    """Return the table of figures, each with its bound and whether it is within."""
    found = Table("figure", "value", "bound", "verdict", box=None, pad_edge=False)
    for name, value in figures.items():
        bound = BOUNDS.get(name)
        if bound is None:
            found.add_row(name, f"{value:.3g}")
            continue
        within = value >= bound if bound > 0 else value <= -bound
        sign = "≥" if bound > 0 else "≤"
        found.add_row(
            name, f"{value:.3g}", f"{sign} {abs(bound):g}", "within" if within else "over"
        )
    return found


def workload() -> Schedule:
    """Return a schedule of decodes with 8 rows, alternately full and padded."""
    steps: list[Step] = [Admit(6, 99)] * ROWS
    for turn in range(DECODES):
        rows = ROWS if turn % 2 else ROWS - 1 - turn % 3
        steps.append(Decode(tuple(range(rows))))
        if turn % EVICT_EVERY == EVICT_EVERY - 1:
            steps += [Evict(place) for place in range(ROWS)]
            steps += [Finish(turn % ROWS), Admit(6, 99)]
    return Schedule(tuple(steps))


def steps_per_second(preset: str, device: str) -> float:
    """Return the median rate of differential steps with all checks of steps.

    Raises RuntimeError if a property is violated or no padded batch is replayed.
    """
    trial = TrialConfig(
        preset=preset,
        device=device,
        scheme=LocationScheme.PRESET,
        full_slots=320,
        swa_slots=192,
    )
    player, schedule = SchedulePlayer(trial, CHEAP_PROPERTIES), workload()

    def play() -> None:
        outcome = player.play(schedule)
        if outcome.error or outcome.violations or not outcome.padded_replays:
            raise RuntimeError(f"the schedule is not clean: {outcome}")

    return round(len(schedule.steps) / seconds(play, device), 1)


def seconds(run: Callable[[], object], device: str) -> float:
    """Return the median time of a call in seconds, after one call that is not measured."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def checksums_over_copy(device: str) -> float:
    """Return the bandwidth of the sanitizer's checksums of a pool over that of a copy."""
    gib = CPU_GIB
    if device == "cuda":
        gib = min(MOST_GIB, POOL_SHARE * torch.cuda.mem_get_info()[0] / 2**30)
    slots = int(gib * 2**30 / (LAYERS * 2 * HEADS * WIDTH * 2))

    def tensor() -> torch.Tensor:
        made = torch.empty(slots, HEADS, WIDTH, dtype=torch.bfloat16, device=device)
        return made.view(torch.int16).random_(0, 2**15 - 1).view(torch.bfloat16)

    layers = tuple(Layer(str(number), (tensor(), tensor())) for number in range(LAYERS))
    checksums = Checksums(Group("pool", layers))
    source = torch.ones(int(gib * 2**27 / 4), dtype=torch.int64, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds(lambda: target.copy_(source), device)
    size = checksums.slots * checksums.bytes_per_slot
    return round(size / seconds(checksums.all, device) / copied, 3)


def watching(engine: str) -> dict[str, float]:
    """Return the figures about watching an engine on a CPU with the CHEAP checks.

    Raises CalledProcessError if a run does not end with 0.
    """
    watched, unwatched = (served(engine, every) for every in (1, UNWATCHED))
    return {
        "sglang on a CPU: forwards/s, cheap checks": rate(watched),
        "sglang on a CPU: watched / unwatched time": rate(unwatched) / rate(watched),
        "sglang on a CPU: seconds that watching adds to the start": start(watched)
        - start(unwatched),
    }


def served(engine: str, every: int) -> dict[str, Any]:
    """Return the record of a run of `paritybit watch` that checks one in `every` forward passes.

    `served` has the seconds without the start of the engine.
    """
    with tempfile.TemporaryDirectory(prefix="paritybit-") as out:
        command = (
            *(sys.executable, "-m", "paritybit", "watch", "--engine", engine, "--device", "cpu"),
            *("--settings", SETTING, "--seconds", str(SECONDS), "--every", str(every)),
            *("--checks", ",".join(CHEAP), "--undecided", "warn", "--out", out),
        )
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        record = min(Path(out).glob("*/watch.json"))  # "latest" links to the run.
        (log,) = record.parent.glob("configs/*/engine.log")
        (taken,) = SERVED.findall(log.read_text(encoding="utf-8", errors="replace"))
        return {**json.loads(record.read_bytes()), "served": float(taken)}


def start(record: dict[str, Any]) -> float:
    """Return the seconds of a run before its first forward pass and after its last."""
    return float(record["seconds"]) - float(record["served"])


def rate(record: dict[str, Any]) -> float:
    """Return the forward passes per second of a run, checked or not."""
    counts = record["counts"]
    number = counts.get("forwards", 0) + counts.get("skipped_forwards", 0)
    return float(number) / float(record["served"])


if __name__ == "__main__":
    typer.run(bench)
