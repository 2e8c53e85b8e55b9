"""Measuring lockstep: differential steps per second with the per-step checks on.

And what share of a step the checks of what was read, held and owned take: the same schedule is
played with and without them in turn.
"""

import statistics
import time
from typing import Any

import torch

from harness.campaigns.hunt import whole
from harness.checks.play import Lockstep, Outcome
from harness.checks.table import STEP_PROPERTIES
from harness.lockstep.config import TrialConfig
from harness.schedules.schedule import Admit, Decode, Evict, Finish, Schedule, Step
from reference.config import PRESETS
from subjects.toggles import LocationScheme

ROWS = 8
DECODES = 36
EVICT_EVERY = 6
REPEATS = 7

HELD_CHECKS = frozenset({"read_frame", "live_inputs", "slot_ownership"})
"""The per-step checks of index lists, static inputs and slots, whose share is measured."""


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


def played(lockstep: Lockstep, schedule: Schedule) -> tuple[float, Outcome]:
    """Return the steps per second of one playing of a schedule, and its outcome.

    Raises RuntimeError for one that is not clean, or replays no padded batch.
    """
    started = time.perf_counter()
    outcome = whole(lockstep.play(schedule))
    if outcome.violations or not outcome.padded_replays:
        raise RuntimeError(f"the benchmark's schedule is not clean: {outcome.violations}")
    if lockstep.trial.device == "cuda":
        torch.cuda.synchronize()
    return outcome.steps / (time.perf_counter() - started), outcome


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
        rates, fewer_checks = [], []
        for _ in range(REPEATS):
            lockstep.watch(STEP_PROPERTIES - HELD_CHECKS)
            rate, _ = played(lockstep, schedule)
            fewer_checks.append(rate)
            lockstep.watch(STEP_PROPERTIES)
            rate, outcome = played(lockstep, schedule)
            rates.append(rate)
        rows.append(
            {
                "preset": preset,
                "steps": outcome.steps,
                "replays": outcome.replays,
                "padded_replays": outcome.padded_replays,
                "steps_per_second": round(statistics.median(rates), 1),
                "slowest": round(min(rates), 1),
                "fastest": round(max(rates), 1),
                "share_of_held_checks": round(
                    1 - statistics.median(rates) / statistics.median(fewer_checks), 3
                ),
            }
        )
    return {
        "rows": ROWS,
        "repeats": REPEATS,
        "properties": sorted(STEP_PROPERTIES),
        "lockstep": rows,
    }
