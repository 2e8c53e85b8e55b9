"""Endurance: false alarms over many clean steps, and how soon each bug is caught, seed by seed."""

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rich.progress import Progress

from harness.campaigns.hunt import hunt, play_all
from harness.campaigns.workers import spreading
from harness.checks.expectations import affected_runners, detected_by
from harness.checks.play import Lockstep
from harness.checks.table import STEP_PROPERTIES
from harness.lockstep.config import TrialConfig
from reference.config import PRESETS
from subjects.bugs.catalogue import BUGS
from subjects.runners import RUNNERS
from subjects.toggles import LocationScheme

EXAMPLES = 50
"""Schedules within which every bug must be caught, whatever the seed; and of one clean hunt."""

TRIED = ("decode", "breakable", "cpu_graph")
"""A runner of each line-up: all of the line-up's runners replay in its trials."""

KEPT = 60
"""Locksteps that a process keeps: all clean trials, or those of a bug."""

CHUNK_STEPS = 2000
"""Clean steps of one piece of work."""


@dataclass(frozen=True)
class Chunk:
    """Clean steps drawn from `seed` on, in every trial in turn."""

    device: str
    seed: int
    steps: int


def soak(
    device: str, steps: int, seeds: Sequence[int], first_seed: int, workers: int
) -> dict[str, Any]:
    """Play at least `steps` clean steps over every preset and era, then hunt each bug by seed."""
    chunks = [
        Chunk(device, first_seed + CHUNK_STEPS * place, CHUNK_STEPS)
        for place in range(-(-steps // CHUNK_STEPS))
    ]
    hunts = [(name, runner) for name, bug in BUGS.items() for runner in affected_runners(bug)]
    started = time.perf_counter()
    with Progress(transient=True) as progress, spreading(workers) as spread:
        bar = progress.add_task("clean steps, then bugs", total=len(chunks) + len(hunts))
        clean: Counter[str] = Counter()
        alarms: list[dict[str, Any]] = []
        for counts, found in spread(clean_steps, chunks):
            clean += counts
            alarms += found
            progress.advance(bar)
        seconds = time.perf_counter() - started
        bugs = []
        for row in spread(bug_by_seed, [(device, *hunt, tuple(seeds)) for hunt in hunts]):
            bugs.append(row)
            progress.advance(bar)
    unreplayed = [each for each in replayed() if not clean[each]]
    missed = [f"{row['bug']}@{row['runner']}" for row in bugs if row["caught"] < row["seeds"]]
    return {
        "clean": {
            **dict(sorted(clean.items())),
            "properties": sorted(STEP_PROPERTIES),
            "trials": [trial.to_json() for trial in trials(device)],
            "seeds": [first_seed, chunks[-1].seed],
            "workers": workers,
            "false_alarms": len(alarms),
            "alarms": alarms,
            "seconds": round(seconds, 1),
            "steps_per_second": round(clean["steps"] / seconds, 1),
        },
        "bugs": bugs,
        "as_hoped": not alarms and not missed and not unreplayed,
        "message": (
            f"{clean['steps']} clean steps in {workers} processes, {len(STEP_PROPERTIES)}"
            f" properties checked at each: {len(alarms)} false alarms;"
            f" missed within {EXAMPLES} schedules by some of {len(seeds)} seeds:"
            f" {', '.join(missed) or 'none'};"
            f" never counted: {', '.join(unreplayed) or 'none'}"
        ),
    }


def replayed() -> list[str]:
    """Return what must have been counted of every runner, or the steps say nothing of it."""
    return [f"{name}: {what}" for name in RUNNERS for what in ("replay", "padded replay")]


def trials(device: str) -> list[TrialConfig]:
    """Return the clean trials: every preset, era and line-up, with either page size and dtype."""
    return [
        TrialConfig(runner, preset, dtype, device, scheme, page_size)
        for preset in PRESETS
        for scheme in LocationScheme
        for runner in TRIED
        for page_size, dtype in ((1, "float32"), (4, "bfloat16"))
    ]


@lru_cache(maxsize=KEPT)
def lockstep_of(trial: TrialConfig) -> Lockstep:
    """Return the lockstep of a trial, built once in a process for as long as it is in use."""
    return Lockstep(trial)


def clean_steps(chunk: Chunk) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Play a chunk; return its counts, and every violation, shrunk."""
    counts: Counter[str] = Counter()
    alarms: list[dict[str, Any]] = []
    every = trials(chunk.device)
    seed = chunk.seed
    while counts["steps"] < chunk.steps:
        lockstep = lockstep_of(every[seed % len(every)])
        hunt_result = play_all(lockstep, seed, EXAMPLES)
        counts["steps"] += hunt_result.steps
        counts["schedules"] += hunt_result.schedules
        counts.update({k: n for k, n in hunt_result.events.items() if k.endswith("replay")})
        if hunt_result.violated:
            shrunk = hunt(lockstep, None, seed, EXAMPLES).schedule
            alarms.append(
                {
                    "trial": lockstep.trial.to_json(),
                    "seed": seed,
                    "violated": dict(hunt_result.violated),
                    "shrunk": repr(shrunk),
                }
            )
        seed += 1
    return counts, alarms


def bug_by_seed(work: tuple[str, str, str, tuple[int, ...]]) -> dict[str, Any]:
    """Hunt one bug on one runner (device, bug, runner, seeds), each seed on another trial.

    Says how many schedules each seed that caught it needed.
    """
    device, name, runner, seeds = work
    bug = BUGS[name]
    variety = [
        replace(each, runner=runner, scheme=bug.scheme, bugs=(name,)) for each in trials(device)
    ]
    variety = list(dict.fromkeys(variety))
    needed: list[int] = []
    for seed in seeds:
        lockstep = lockstep_of(variety[seed % len(variety)])
        hunt_result = hunt(lockstep, detected_by(bug), seed, EXAMPLES, shrinks=False)
        if hunt_result.schedule is not None:
            needed.append(hunt_result.schedules)
    return {
        "bug": name,
        "runner": runner,
        "property": detected_by(bug),
        "trials": len(variety),
        "seeds": len(seeds),
        "caught": len(needed),
        "schedules_needed": needed,
        "median": statistics.median(needed) if needed else None,
        "most": max(needed, default=None),
    }
