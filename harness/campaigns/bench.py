"""Measures the cost of a differential step and of its parts.

The same schedule is played with all checks, without the checks of reads, static inputs and slot
ownership, with hermetic_replay only, and without checks. Times are CPU times of the process. The
time of a step is also given in products of small tensors, which is comparable between machines.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from paritybit.harness.campaigns.hunt import play_all, without_error
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.step_properties.hermetic_replay import HERMETIC_REPLAY
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair, Recorder
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.harness.schedules.schedule import Admit, Decode, Evict, Finish, Schedule, Step
from paritybit.reference.config import PRESETS
from paritybit.subjects.toggles import LocationScheme

ROWS = 8
DECODES = 36
EVICT_EVERY = 6
REPEATS = 7
SCHEDULES = 4
PRODUCTS = 20_000
"""The number of products of small tensors measured before and after each playing."""

HELD_CHECKS = frozenset({"read_frame", "live_inputs", "slot_ownership"})
"""The checks of index lists, static inputs and slots, whose share of the time is measured."""


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


@dataclass
class Stopwatch(Recorder):
    """Adds up the CPU seconds of this process for each part of a step."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    since: float = 0.0

    def planned(self, pair: Pair, planned: PlannedStep) -> None:
        """Measure the planning, which is over."""
        self.seconds["planning"] += time.process_time() - self.since

    def eager(self) -> Any:
        """Measure the eager forward."""
        return self._timed("eager")

    def forwarding(self) -> Any:
        """Measure the subject's forward."""
        return self._timed("replay")

    def observe(
        self, place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        """Start to measure the next step."""
        self.since = time.process_time()

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[part] += time.process_time() - started


@dataclass(frozen=True)
class Played:
    """One playing of the schedule: wall seconds, CPU seconds and outcome."""

    elapsed: float
    seconds: float
    outcome: Outcome

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.outcome.steps / self.elapsed

    @property
    def step(self) -> float:
        """CPU seconds per step."""
        return self.seconds / self.outcome.steps


def played(
    lockstep: Lockstep,
    schedule: Schedule,
    properties: frozenset[str] = STEP_PROPERTIES,
    stopwatch: Stopwatch | None = None,
) -> Played:
    """Play a schedule and check some properties.

    Raises RuntimeError if a property is violated or no padded batch is replayed.
    """
    lockstep.watch(properties)
    watch = stopwatch or Stopwatch()
    started, busy = time.perf_counter(), time.process_time()
    watch.since = busy
    outcome = without_error(lockstep.play(schedule, watch.observe, recorder=watch))
    if outcome.violations or not outcome.padded_replays:
        raise RuntimeError(f"the benchmark schedule has violations: {outcome.violations}")
    if lockstep.trial.device == "cuda":
        torch.cuda.synchronize()
    return Played(time.perf_counter() - started, time.process_time() - busy, outcome)


def product_seconds() -> float:
    """Return the seconds of one torch.mul(a, b, out=c) with 8 x 64 floats on the CPU."""
    one, other, result = torch.rand(8, 64), torch.rand(8, 64), torch.empty(8, 64)
    started = time.process_time()
    for _ in range(PRODUCTS):
        torch.mul(one, other, out=result)
    return (time.process_time() - started) / PRODUCTS


def in_products(play: Callable[[], Played]) -> tuple[Played, float]:
    """Return a playing, and its time per step in products, measured before and after it."""
    before = product_seconds()
    one = play()
    return one, 2 * one.step / (before + product_seconds())


def parts_of(lockstep: Lockstep, schedule: Schedule, step: float) -> dict[str, float]:
    """Return the seconds of a step's parts. Their sum is `step`.

    Planning includes the copies made before a forward. `just-captured replay` is the time that
    hermetic_replay adds, `checks` the time that all other checks add, and bookkeeping is the rest.
    """
    bare, with_fresh = [], []
    watches = [Stopwatch() for _ in range(REPEATS)]
    for watch in watches:
        bare.append(played(lockstep, schedule, frozenset(), watch))
        with_fresh.append(played(lockstep, schedule, frozenset({HERMETIC_REPLAY.id})).step)
    steps = bare[0].outcome.steps
    parts = {
        name: statistics.median(watch.seconds[name] for watch in watches) / steps
        for name in ("planning", "eager", "replay")
    }
    alone, fresh = statistics.median(one.step for one in bare), statistics.median(with_fresh)
    return {
        **parts,
        "just-captured replay": fresh - alone,
        "checks": step - fresh,
        "bookkeeping": alone - sum(parts.values()),
    }


def captured_graphs(lockstep: Lockstep) -> int:
    """Return the number of graphs that both engines of a lockstep have captured."""
    engines = lockstep.pair.subject, lockstep.pair.fresh_engine
    return sum(len(runner.captured) for engine in engines for runner in engine.runners.values())


def bench_trial(preset: str, device: str) -> TrialConfig:
    """Return the trial to measure: decode, a preset's tiny size, float32."""
    return TrialConfig(
        preset=preset,
        device=device,
        scheme=LocationScheme.PRESET,
        full_slots=320,
        swa_slots=192,
    )


def measured(preset: str, device: str, schedule: Schedule) -> dict[str, Any]:
    """Return the measured figures for a preset's trial."""
    started = time.process_time()
    lockstep = Lockstep(bench_trial(preset, device))
    capturing = time.process_time() - started
    played(lockstep, schedule)
    fewer, all_checks = [], []
    for _ in range(REPEATS):
        fewer.append(played(lockstep, schedule, STEP_PROPERTIES - HELD_CHECKS).rate)
        all_checks.append(in_products(lambda: played(lockstep, schedule)))
    rates = [one.rate for one, _ in all_checks]
    outcome = all_checks[-1][0].outcome
    step = statistics.median(one.step for one, _ in all_checks)
    parts = parts_of(lockstep, schedule, step)
    started = time.process_time()
    lockstep.watch(STEP_PROPERTIES)
    drawn = play_all(lockstep, 0, SCHEDULES)
    return {
        "preset": preset,
        "steps": outcome.steps,
        "replays": outcome.replays,
        "padded_replays": outcome.padded_replays,
        "steps_per_second": round(statistics.median(rates), 1),
        "slowest": round(min(rates), 1),
        "fastest": round(max(rates), 1),
        "share_of_held_checks": round(1 - statistics.median(rates) / statistics.median(fewer), 3),
        "step_milliseconds": round(1000 * step, 2),
        "step_in_products": round(statistics.median(worth for _, worth in all_checks)),
        "parts_milliseconds": {name: round(1000 * part, 2) for name, part in parts.items()},
        "captures_per_second": round(captured_graphs(lockstep) / capturing, 1),
        "schedules_per_second": round(drawn.schedules / (time.process_time() - started), 2),
    }


def bench(device: str) -> dict[str, Any]:
    """Return the measured figures for each preset."""
    schedule = workload()
    return {
        "rows": ROWS,
        "repeats": REPEATS,
        "properties": sorted(STEP_PROPERTIES),
        "lockstep": [measured(preset, device, schedule) for preset in PRESETS],
    }
