"""Endurance: false alarms over many clean steps, and how soon each bug is caught, seed by seed."""

import statistics
import time
from typing import Any

from rich.progress import Progress

from harness.hunt import hunt
from harness.lockstep import Lockstep
from harness.trial import Trial
from harness.violation import STEP_PROPERTIES
from reference.config import PRESETS
from subjects.behaviour import Era
from subjects.bugs import BUGS

EXAMPLES = 50
"""Schedules within which every bug must be caught, whatever the seed."""


def soak(device: str, steps: int, seeds: int, first_seed: int) -> dict[str, Any]:
    """Play at least `steps` clean steps over every preset and era, then `seeds` hunts per bug."""
    with Progress() as progress:
        clean = clean_steps(device, steps, first_seed, progress)
        bugs = [
            bug_by_seed(device, name, seeds, progress)
            for name in BUGS
            if BUGS[name].caught_by is not None
        ]
    missed = [row["bug"] for row in bugs if row["caught"] < seeds]
    return {
        "clean": clean,
        "bugs": bugs,
        "as_hoped": not clean["false_alarms"] and clean["padded_replays"] > 0 and not missed,
        "told": (
            f"{clean['steps']} clean steps, {clean['false_alarms']} false alarms,"
            f" {clean['steps_per_second']:.0f} steps/s;"
            f" bugs missed in {EXAMPLES} schedules by some seed: {', '.join(missed) or 'none'}"
        ),
    }


def clean_steps(device: str, steps: int, first_seed: int, progress: Progress) -> dict[str, Any]:
    """Play generated schedules on clean subjects, trial by trial in turn, seed after seed."""
    bar = progress.add_task("clean steps", total=steps)
    arms = [
        Lockstep(Trial(preset=preset, device=device, era=era, page_size=page_size, dtype=dtype))
        for preset in PRESETS
        for era in Era
        for page_size, dtype in ((1, "float32"), (4, "bfloat16"))
    ]
    totals = {"steps": 0, "replays": 0, "padded_replays": 0, "schedules": 0}
    alarms: list[dict[str, Any]] = []
    started = time.perf_counter()
    seed = first_seed
    while totals["steps"] < steps:
        lockstep = arms[seed % len(arms)]
        catch = hunt(lockstep, None, seed, EXAMPLES)
        if catch.schedule is not None:
            outcome = lockstep.play(catch.schedule)
            alarms += [each.to_json() for each in outcome.violations]
        for key in totals:
            totals[key] += getattr(catch, key)
        progress.update(bar, completed=totals["steps"])
        seed += 1
    seconds = time.perf_counter() - started
    return {
        **totals,
        "properties": sorted(STEP_PROPERTIES),
        "trials": len(arms),
        "first_seed": first_seed,
        "last_seed": seed - 1,
        "false_alarms": len(alarms),
        "alarms": alarms,
        "seconds": round(seconds, 1),
        "steps_per_second": round(totals["steps"] / seconds, 1),
    }


def bug_by_seed(device: str, name: str, seeds: int, progress: Progress) -> dict[str, Any]:
    """Hunt one bug with seeds 0 .. seeds-1; say how many schedules each needed."""
    bar = progress.add_task(name, total=seeds)
    lockstep = Lockstep(Trial(device=device).with_bug(name))
    needed: list[int] = []
    for seed in range(seeds):
        catch = hunt(lockstep, BUGS[name].caught_by, seed, EXAMPLES, shrink=False)
        if catch.schedule is not None:
            needed.append(catch.schedules)
        progress.update(bar, advance=1)
    return {
        "bug": name,
        "property": BUGS[name].caught_by,
        "seeds": seeds,
        "caught": len(needed),
        "schedules_needed": needed,
        "median": statistics.median(needed) if needed else None,
        "most": max(needed, default=None),
    }
