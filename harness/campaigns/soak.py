"""The soak test: counts false alarms over many clean steps, and schedules to detection by seed."""

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from paritybit.harness.campaigns.confirm import confirmed
from paritybit.harness.campaigns.executor import Campaign, Ended
from paritybit.harness.campaigns.fresh import play_fresh
from paritybit.harness.campaigns.hunt import hunt, play_all, time_limit, without_error
from paritybit.harness.campaigns.locksteps import LARGE
from paritybit.harness.campaigns.spreading.backends import execute
from paritybit.harness.campaigns.task import watched_for
from paritybit.harness.checks.expectations import affected_runners, detected_by
from paritybit.harness.checks.play import DeviceLostError, Lockstep
from paritybit.harness.checks.table import STEP_PROPERTIES
from paritybit.harness.errors import headline
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scale.shapes import FEW_EXAMPLES, trial_of
from paritybit.harness.machine.workers import Workers, sparing
from paritybit.harness.schedules.coverage import required_replays
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.config import PRESETS, Shape
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import ONE_PER_ENGINE, RUNNERS
from paritybit.subjects.toggles import LocationScheme
from rich.progress import Progress

EXAMPLES = 50
"""Schedules per clean hunt."""

HUNT_EXAMPLES = 100
"""The number of schedules within which each seed must detect each bug."""

MEDIAN = 8
"""The number of schedules within which half of the seeds must detect each bug."""

SEEDS_AT_ONCE = 5
"""Seeds per task. With overlapping steps, all seeds of a bug together take minutes."""

KEPT = 8
"""The number of locksteps that a process keeps: those for one bug."""

CHUNK_STEPS = 2000
"""The maximum number of clean steps per task. A task finishes the schedules of its last seed.

A soak with fewer steps per trial divides them evenly."""

MOST_SCHEDULES = 500
"""An upper bound of the schedules that a task plays, including alarms and shrinking."""


NOT_SEEN_AGAIN = (
    "the finding depends on undeclared state because the same schedules did not reproduce it"
)


@dataclass(frozen=True)
class Chunk:
    """A task: clean steps of one trial, with seeds from `seed` on."""

    trial: TrialConfig
    seed: int
    steps: int

    @property
    def label(self) -> str:
        """The name of the task in an error message."""
        return f"clean steps from seed {self.seed}"


@dataclass
class CleanSteps:
    """The result of a chunk: its counts, and all violations with shrunk schedules."""

    counts: Counter[str] = field(default_factory=Counter)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    device_lost: bool = False

    @property
    def spoiled(self) -> bool:
        """Whether the process can no longer use its device."""
        return self.device_lost

    def alarm(
        self,
        trial: TrialConfig,
        seed: int,
        violated: Counter[str],
        shrunk: Schedule | None,
        undeclared: str | None = None,
    ) -> None:
        """Record a false alarm. `undeclared` is set if no fresh process reproduces it."""
        self.alarms.append(
            {
                "trial": trial.to_json(),
                "seed": seed,
                "violated": dict(sorted(violated.items())),
                "shrunk": repr(shrunk),
                "undeclared": undeclared,
            }
        )


@dataclass(frozen=True)
class SeededHunts:
    """A task: hunts of one bug on one runner with several seeds, each on another trial."""

    device: str
    bug: str
    runner: str
    seeds: tuple[int, ...]
    shape: Shape = Shape.TINY

    @property
    def label(self) -> str:
        """The name of the task in an error message."""
        return f"{self.bug}@{self.runner}"


@dataclass(frozen=True)
class Detections:
    """The schedules needed by each seed that detected the bug, and the number of trials."""

    trials: int
    needed: tuple[int, ...]
    device_lost: bool = False

    @property
    def spoiled(self) -> bool:
        """Whether its process can use its device no more."""
        return self.device_lost


@dataclass
class Soaked:
    """The finished part of a soak.

    `planned` is the number of tasks. `seconds` is the time of the clean steps.
    """

    device: str
    seeds: int
    planned: int
    workers: Workers
    shape: Shape = Shape.TINY
    cleans: list[Ended[Chunk, CleanSteps]] = field(default_factory=list)
    detections: list[Ended[SeededHunts, Detections]] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False


def soak(
    device: str,
    steps: int,
    seeds: Sequence[int],
    first_seed: int,
    workers: Workers,
    shape: Shape = Shape.TINY,
) -> dict[str, Any]:
    """Play at least `steps` clean steps over all trials, then hunt each bug with each seed.

    If interrupted, return the figures of the tasks that have ended.
    """
    all_trials = trials(device, shape)
    chunk_steps = min(CHUNK_STEPS, -(-steps // len(all_trials))) or 1
    chunks = [
        Chunk(all_trials[place % len(all_trials)], first_seed + CHUNK_STEPS * place, chunk_steps)
        for place in range(-(-steps // chunk_steps))
    ]
    hunts = all_hunts(device, seeds, shape)
    spread_over = sparing(workers, device)
    soaked = Soaked(device, len(seeds), len(chunks) + len(hunts), workers, shape)
    with Progress(transient=True) as progress:
        bar = progress.add_task("clean steps, then bugs", total=len(chunks) + len(hunts))

        def on_chunk(ended: Ended[Chunk, CleanSteps]) -> None:
            soaked.cleans.append(ended)
            soaked.seconds = time.perf_counter() - started
            progress.advance(bar)

        def on_hunts(ended: Ended[SeededHunts, Detections]) -> None:
            soaked.detections.append(ended)
            progress.advance(bar)

        started = time.perf_counter()
        try:
            execute(CLEAN, chunks, spread_over, on_chunk)
            execute(HUNTS, hunts, spread_over, on_hunts)
        except KeyboardInterrupt:
            soaked.interrupted = True
    soaked.cleans.sort(key=lambda ended: ended.task.seed)
    return _figures(soaked)


def all_hunts(device: str, seeds: Sequence[int], shape: Shape = Shape.TINY) -> list[SeededHunts]:
    """Return the hunts of all bugs on all runners with all seeds, the slowest first.

    Bugs that need overlapping steps are left out for a shape without them.
    """
    slowest_first = sorted(BUGS.values(), key=lambda bug: not bug.overlap)
    return [
        SeededHunts(device, bug.name, runner, tuple(seeds[first : first + SEEDS_AT_ONCE]), shape)
        for bug in slowest_first
        if not (bug.overlap and shape is Shape.REAL)
        for runner in affected_runners(bug)
        for first in range(0, len(seeds), SEEDS_AT_ONCE)
    ]


def _figures(soaked: Soaked) -> dict[str, Any]:
    """Return the figures of a soak. `seconds` is the time of the clean steps."""
    cleans, detections, seeds = soaked.cleans, soaked.detections, soaked.seeds
    played = [ended.result for ended in cleans if ended.result is not None]
    counts = sum((clean.counts for clean in played), Counter[str]())
    alarms = [alarm for clean in played for alarm in clean.alarms]
    bugs = _bug_rows(detections)
    ends = [(ended.task.label, ended.error) for ended in cleans]
    ends += [(ended.task.label, ended.error) for ended in detections]
    errors = [{"task": label, "error": error} for label, error in ends if error is not None]
    unreplayed = [event for event in required_replays(RUNNERS) if cleans and not counts[event]]
    missed = [f"{row['bug']}@{row['runner']}" for row in bugs if row["caught"] < row["seeds"]]
    lost = 0 if soaked.interrupted else soaked.planned - len(cleans) - len(detections)
    late = [f"{row['bug']}@{row['runner']}" for row in bugs if (row["median"] or 0) > MEDIAN]
    return {
        "clean": {
            **dict(sorted(counts.items())),
            "properties": sorted(STEP_PROPERTIES),
            "trials": [trial.to_json() for trial in trials(soaked.device, soaked.shape)],
            "seeds": [cleans[0].task.seed, cleans[-1].task.seed] if cleans else [],
            "workers": soaked.workers.processes,
            "false_alarms": len(alarms),
            "alarms": alarms,
            "seconds": round(soaked.seconds, 1),
            "steps_per_second": round(counts["steps"] / soaked.seconds, 1) if cleans else None,
        },
        "bugs": bugs,
        "errors": errors,
        "interrupted": soaked.interrupted,
        "undecided": bool(errors or lost or unreplayed) and not (alarms or missed or late),
        "as_hoped": not (
            alarms or missed or late or unreplayed or errors or lost or soaked.interrupted
        ),
        "message": (
            f"{'interrupted; so far, ' if soaked.interrupted else ''}{counts['steps']} clean steps"
            f" in {soaked.workers.processes} processes with {len(STEP_PROPERTIES)} properties"
            f" checked at each step: {len(alarms)} false alarms;"
            f" bugs missed by a seed within {HUNT_EXAMPLES} schedules ({seeds} seeds):"
            f" {', '.join(missed) or 'none'};"
            f" bugs with a median detection after schedule {MEDIAN}: {', '.join(late) or 'none'};"
            f" states never reached: {', '.join(unreplayed) or 'none'}"
            + f"; {lost} of {soaked.planned} tasks gave no result" * bool(lost)
            + "".join(f"; {error['task']} failed: {headline(error['error'])}" for error in errors)
        ),
    }


def trials(device: str, shape: Shape = Shape.TINY) -> list[TrialConfig]:
    """Return the clean trials: all presets, location schemes and engines, with two page sizes."""
    if shape is Shape.TINY:
        return [
            TrialConfig(runner, preset, dtype, device, scheme, page_size)
            for preset in PRESETS
            for scheme in LocationScheme
            for runner in ONE_PER_ENGINE
            for page_size, dtype in ((1, "float32"), (4, "bfloat16"))
        ]
    return [
        trial_of(shape, preset, runner, device, scheme, turn)
        for preset in PRESETS
        for scheme in LocationScheme
        for runner in ONE_PER_ENGINE
        for turn in range(2)
    ]


@lru_cache(maxsize=KEPT)
def lockstep_of(trial: TrialConfig) -> Lockstep:
    """Return the lockstep of a trial. The process keeps it."""
    return Lockstep(trial)


def kept_lockstep(trial: TrialConfig) -> Lockstep:
    """Return the lockstep of a trial. With large pools it is the only one of this process."""
    return LARGE(trial) if trial.large else lockstep_of(trial)


def clean_steps(chunk: Chunk) -> CleanSteps:
    """Play a chunk. Raises PlayingFailedError for an internal error."""
    clean = CleanSteps()
    seed = chunk.seed
    while clean.counts["steps"] < chunk.steps and not clean.device_lost:
        try:
            _play_clean(clean, chunk.trial, seed)
        except DeviceLostError as lost:
            clean.device_lost = True
            clean.alarm(chunk.trial, seed, Counter(lost.outcome.violated), lost.schedule)
        seed += 1
    return clean


def _play_clean(clean: CleanSteps, trial: TrialConfig, seed: int) -> None:
    """Play and count the schedules of one seed on one trial, and shrink those that fail."""
    examples = FEW_EXAMPLES.get(Shape(trial.shape), EXAMPLES)
    hunt_result = without_error(play_all(kept_lockstep(trial), seed, examples))
    clean.counts["steps"] += hunt_result.steps
    clean.counts["schedules"] += hunt_result.schedules
    clean.counts.update(
        {event: count for event, count in hunt_result.events.items() if event.endswith("replay")}
    )
    if hunt_result.violated:
        found = without_error(hunt(kept_lockstep(trial), None, seed, examples))
        if found.schedule is None:
            clean.alarm(trial, seed, hunt_result.violated, None, NOT_SEEN_AGAIN)
            return
        LARGE.release()
        shown = confirmed(trial, found, None, STEP_PROPERTIES, play_fresh)
        undeclared = shown.undeclared.message if shown.undeclared is not None else None
        clean.alarm(trial, seed, hunt_result.violated, shown.schedule, undeclared)


def hunt_by_seed(hunts: SeededHunts) -> Detections:
    """Hunt a bug with each seed. Raises PlayingFailedError for an internal error."""
    bug = BUGS[hunts.bug]
    target = detected_by(bug, hunts.runner)
    varied = [
        replace(trial, runner=hunts.runner).with_bug(bug.name)
        for trial in trials(hunts.device, hunts.shape)
    ]
    varied = list(dict.fromkeys(varied))
    needed: list[int] = []
    for seed in hunts.seeds:
        lockstep = kept_lockstep(varied[seed % len(varied)])
        lockstep.watch(watched_for(target))
        try:
            hunt_result = hunt(lockstep, target, seed, HUNT_EXAMPLES, shrinks=False)
        except DeviceLostError:
            return Detections(len(varied), tuple(needed), device_lost=True)
        if without_error(hunt_result).schedule is not None:
            needed.append(hunt_result.schedules)
    return Detections(len(varied), tuple(needed))


def _bug_rows(ends: Iterable[Ended[SeededHunts, Detections]]) -> list[dict[str, Any]]:
    """Return the schedules needed per seed for each bug and runner, in the catalogue's order."""
    rows = []
    for name, bug in BUGS.items():
        for runner in affected_runners(bug):
            parts = [
                (ended.task, ended.result)
                for ended in ends
                if (ended.task.bug, ended.task.runner) == (name, runner) and ended.result
            ]
            if parts:
                rows.append(_bug_row(sorted(parts, key=lambda part: part[0].seeds)))
    return rows


def _bug_row(parts: Sequence[tuple[SeededHunts, Detections]]) -> dict[str, Any]:
    """Return the schedules needed per seed for one bug and runner, as JSON data."""
    hunts = parts[0][0]
    needed = [schedules for _, detections in parts for schedules in detections.needed]
    return {
        "bug": hunts.bug,
        "runner": hunts.runner,
        "property": detected_by(BUGS[hunts.bug], hunts.runner),
        "trials": parts[0][1].trials,
        "seeds": sum(len(part.seeds) for part, _ in parts),
        "caught": len(needed),
        "schedules_needed": needed,
        "median": statistics.median(needed) if needed else None,
        "most": max(needed, default=None),
    }


CLEAN = Campaign(
    clean_steps,
    shared=lambda chunk: chunk.trial,
    seconds=lambda _: time_limit(MOST_SCHEDULES),
    label=lambda chunk: chunk.label,
)
HUNTS = Campaign(
    hunt_by_seed,
    shared=lambda hunts: hunts,
    seconds=lambda hunts: time_limit(HUNT_EXAMPLES * len(hunts.seeds)),
    label=lambda hunts: hunts.label,
)
"""Run the two kinds of tasks."""
