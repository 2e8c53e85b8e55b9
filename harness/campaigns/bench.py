"""Measures differential steps per second, and compares all figures of `bench` with their bounds.

The same schedule is played several times with all checks of steps. The figure is the median.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from paritybit.harness.campaigns.hunt import without_error
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.files import read_bytes
from paritybit.harness.schedules.schedule import Admit, Decode, Evict, Finish, Schedule, Step
from paritybit.subjects.toggles import LocationScheme

from paritybit.places import SOURCES

Data = Mapping[str, Any]

EVIDENCE = SOURCES / "reports" / "evidence"
"""The folder of committed records. An installed package has none."""

ROWS = 8
DECODES = 36
EVICT_EVERY = 6
REPEATS = 7

COMMIT = 7
"""Digits of a commit in the table."""


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


def bench_trial(preset: str, device: str) -> TrialConfig:
    """Return the trial to measure: decode, a preset's tiny size, float32."""
    return TrialConfig(
        preset=preset,
        device=device,
        scheme=LocationScheme.PRESET,
        full_slots=320,
        swa_slots=192,
    )


def steps_per_second(preset: str, device: str) -> float:
    """Return the median rate of differential steps with all checks of steps.

    Raises RuntimeError if a property is violated or no padded batch is replayed.
    """
    lockstep = Lockstep(bench_trial(preset, device), STEP_PROPERTIES)
    schedule, rates = workload(), []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        outcome = without_error(lockstep.play(schedule))
        if device == "cuda":
            torch.cuda.synchronize()
        rates.append(outcome.steps / (time.perf_counter() - started))
        if outcome.violations or not outcome.padded_replays:
            raise RuntimeError(f"the benchmark schedule has violations: {outcome.violations}")
    return round(statistics.median(rates[1:]), 1)  # The first playing warms up.


@dataclass(frozen=True)
class Bound:
    """A figure and its bound: a maximum, or a minimum with `at_least`.

    `of` returns the figure from a record of `bench`, or from the committed file `record` if `bench`
    does not measure it. None means that it was not measured.
    """

    figure: str
    bound: float
    of: Callable[[Data], float | None]
    record: str | None = None
    at_least: bool = False

    def cells(self, now: Data, before: Data | None) -> tuple[str, str, str, str, str]:
        """Return the figure, its bound, its value now and in a committed record, and the verdict.

        `now` has the figures of this run, `before` is a committed record of `bench`.
        """
        value = self.of({"figures": now}) if self.record is None else None
        if self.record is not None:
            path = EVIDENCE / self.record
            before = plain(path) if path.exists() else None
        recorded = self.of(before) if before is not None else None
        judged = recorded if value is None else value
        verdict = "not measured here"
        if judged is not None:
            kept = judged >= self.bound if self.at_least else judged <= self.bound
            verdict = "within" if kept else "over"
            if value is None and before is not None:
                verdict += f" at {before['environment']['commit'][:COMMIT]}"
        sign = "≥" if self.at_least else "≤"
        return self.figure, f"{sign} {self.bound:g}", shown(value), shown(recorded), verdict


def shown(value: float | None) -> str:
    """Return a figure as text, or – without one."""
    return "–" if value is None else f"{value:.3g}"


def measured(part: str, name: str) -> Callable[[Data], float | None]:
    """Return what takes a figure from a part of a bench record, if the part was measured."""
    return lambda record: (record["figures"].get(part) or {}).get(name)


BOUNDS = (
    Bound("watched pool: checksums / copy", 0.8, measured("pool", "frame_over_copy"), None, True),
    Bound("sglang on a CPU: watched / unwatched time", 1.3, measured("watching", "over_unwatched")),
    Bound(
        "sglang on a CPU: forwards/s, cheap checks",
        110,
        measured("watching", "forwards_per_second"),
        at_least=True,
    ),
    Bound(
        "sglang on a CPU: seconds that watching adds to the start",
        5,
        measured("watching", "seconds_added_to_start"),
    ),
    Bound(
        "H200, MPS: seconds of regress", 45, lambda record: record["seconds"], "h200/regress.json"
    ),
    Bound(
        "H200, MPS: seconds of the suite",
        45,
        lambda record: record["figures"]["seconds"],
        "h200/suite.json",
    ),
)
"""All bounds on speed that a record can show."""


def plain(path: Path) -> Data:
    """Return the data of a committed record."""
    data: Data = msgspec.json.decode(read_bytes(path))
    return data


def committed(device_name: str) -> Data | None:
    """Return the committed record of `bench` from a device, or None."""
    records = map(plain, sorted(EVIDENCE.rglob("*bench.json")))
    return next((one for one in records if one["environment"]["device_name"] == device_name), None)
