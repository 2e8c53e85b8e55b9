"""Endurance: false alarms over many clean steps, and how soon each bug is caught, seed by seed."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rich.progress import Progress

from harness.hunt import hunt, survey
from harness.lockstep import Lockstep
from harness.trial import Trial
from harness.violation import STEP_PROPERTIES
from harness.workers import end, pool, undisturbed
from reference.config import PRESETS
from subjects.behaviour import Era
from subjects.bugs import BUGS

EXAMPLES = 50
"""Schedules within which every bug must be caught, whatever the seed; and of one clean hunt."""

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
    names = [name for name, bug in BUGS.items() if bug.caught_by is not None]
    started = time.perf_counter()
    with Progress(transient=True) as progress, _mapping(workers) as spread:
        bar = progress.add_task("clean steps, then bugs", total=len(chunks) + len(names))
        clean: Counter[str] = Counter()
        alarms: list[dict[str, Any]] = []
        for counts, found in spread(clean_steps, chunks):
            clean += counts
            alarms += found
            progress.advance(bar)
        seconds = time.perf_counter() - started
        bugs = []
        for row in spread(bug_by_seed, [(device, name, tuple(seeds)) for name in names]):
            bugs.append(row)
            progress.advance(bar)
    missed = [row["bug"] for row in bugs if row["caught"] < row["seeds"]]
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
        "as_hoped": not alarms and clean["padded_replays"] > 0 and not missed,
        "told": (
            f"{clean['steps']} clean steps in {workers} processes, {len(STEP_PROPERTIES)}"
            f" properties checked at each: {len(alarms)} false alarms;"
            f" missed within {EXAMPLES} schedules by some of {len(seeds)} seeds:"
            f" {', '.join(missed) or 'none'}"
        ),
    }


@contextmanager
def _mapping(workers: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """Give a map over `workers` processes, or over this one alone."""
    if workers == 1:
        yield map
        return
    executor = pool(workers)

    def spread(function: Callable[[Any], Any], work: Sequence[Any]) -> Iterator[Any]:
        with undisturbed():
            return executor.map(function, work)

    try:
        yield spread
    except BaseException:
        end(executor)
        raise
    executor.shutdown()


def trials(device: str) -> list[Trial]:
    """Return the clean trials: every preset and era, with either page size and dtype."""
    return [
        Trial(preset=preset, device=device, era=era, page_size=page_size, dtype=dtype)
        for preset in PRESETS
        for era in Era
        for page_size, dtype in ((1, "float32"), (4, "bfloat16"))
    ]


@cache
def lockstep_of(trial: Trial) -> Lockstep:
    """Return the lockstep of a trial, built once in a process."""
    return Lockstep(trial)


def clean_steps(chunk: Chunk) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Play a chunk; return its counts, and every violation, shrunk."""
    counts: Counter[str] = Counter()
    alarms: list[dict[str, Any]] = []
    every = trials(chunk.device)
    seed = chunk.seed
    while counts["steps"] < chunk.steps:
        lockstep = lockstep_of(every[seed % len(every)])
        catch = survey(lockstep, seed, EXAMPLES)
        for key in ("steps", "replays", "padded_replays", "schedules"):
            counts[key] += getattr(catch, key)
        if catch.violated:
            shrunk = hunt(lockstep, None, seed, EXAMPLES).schedule
            alarms.append(
                {
                    "trial": lockstep.trial.to_json(),
                    "seed": seed,
                    "violated": dict(catch.violated),
                    "shrunk": repr(shrunk),
                }
            )
        seed += 1
    return counts, alarms


def bug_by_seed(work: tuple[str, str, tuple[int, ...]]) -> dict[str, Any]:
    """Hunt one bug (device, name, seeds), each seed on another preset, page size and dtype.

    Says how many schedules each seed that caught it needed.
    """
    device, name, seeds = work
    bug = BUGS[name]
    variety = [replace(each, era=bug.era, bug=name) for each in trials(device)]
    variety = list(dict.fromkeys(variety))
    needed: list[int] = []
    for seed in seeds:
        lockstep = lockstep_of(variety[seed % len(variety)])
        catch = hunt(lockstep, bug.caught_by, seed, EXAMPLES, shrink=False)
        if catch.schedule is not None:
            needed.append(catch.schedules)
    return {
        "bug": name,
        "property": bug.caught_by,
        "trials": len(variety),
        "seeds": len(seeds),
        "caught": len(needed),
        "schedules_needed": needed,
        "median": statistics.median(needed) if needed else None,
        "most": max(needed, default=None),
    }
