"""Measuring lockstep: differential steps per second with the per-step checks on."""

import statistics
import time
from typing import Any

import torch

from harness.campaigns.hunt import whole
from harness.checks.play import Lockstep
from harness.checks.table import STEP_PROPERTIES
from harness.lockstep.config import TrialConfig
from harness.schedules.schedule import Admit, Decode, Evict, Finish, Schedule, Step
from reference.config import PRESETS
from subjects.toggles import LocationScheme

ROWS = 8
DECODES = 36
EVICT_EVERY = 6
REPEATS = 7


def workload() -> Schedule:
    """Return decodes of 8 rows, full and padded in turn, as requests come and go."""
    steps: list[Step] = [Admit(6, 99)] * ROWS
    for turn in range(DECODES):
        rows = ROWS if turn % 2 else ROWS - 1 - turn % 3
        steps.append(Decode(tuple(range(rows))))
        if turn % EVICT_EVERY == EVICT_EVERY - 1:
            steps += [Evict(place) for place in range(ROWS)]
            steps += [Finish(turn % ROWS), Admit(6, 99)]
    return Schedule(tuple(steps))


def bench(device: str) -> dict[str, Any]:
    """Return the median rate of each preset's tiny size, float32, in one process."""
    schedule = workload()
    rows = []
    for preset in PRESETS:
        lockstep = Lockstep(
            TrialConfig(
                preset=preset,
                device=device,
                scheme=LocationScheme.PRESET,
                full_slots=320,
                swa_slots=192,
            )
        )
        lockstep.play(schedule)
        rates = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            outcome = whole(lockstep.play(schedule))
            if outcome.violations or not outcome.padded_replays:
                raise RuntimeError(f"the benchmark's schedule is not clean: {outcome.violations}")
            if device == "cuda":
                torch.cuda.synchronize()
            rates.append(outcome.steps / (time.perf_counter() - started))
        rows.append(
            {
                "preset": preset,
                "steps": outcome.steps,
                "replays": outcome.replays,
                "padded_replays": outcome.padded_replays,
                "steps_per_second": round(statistics.median(rates), 1),
                "slowest": round(min(rates), 1),
                "fastest": round(max(rates), 1),
            }
        )
    return {
        "rows": ROWS,
        "repeats": REPEATS,
        "properties": sorted(STEP_PROPERTIES),
        "lockstep": rows,
    }
