"""Shrinking a failing schedule: steps are dropped, then what is left is made simpler.

Hypothesis draws schedules; it does not shrink them. Its shrinker knows nothing of steps
and plays some five times as many schedules for the same result.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache

from paritybit.harness.schedules.schedule import Schedule, Step

Fails = Callable[[Schedule], bool]


def shrink(schedule: Schedule, fails: Fails) -> Schedule:
    """Return a schedule, no longer and no more complex, that fails as `schedule` does.

    `fails` is asked once about each schedule that is tried.
    """
    fails = cache(fails)
    kept = cut(schedule, fails)
    while True:
        simpler = cut(simplify(kept, fails), fails)
        if simpler == kept:
            return kept
        kept = simpler


def cut(schedule: Schedule, fails: Fails) -> Schedule:
    """Return a shorter schedule that still fails, by dropping blocks of steps, last first."""
    kept = schedule.steps
    block = len(kept)
    while block:
        start = len(kept)
        while start > 0:
            begin = max(0, start - block)
            shorter = Schedule(kept[:begin] + kept[start:], schedule.seed)
            if fails(shorter):
                kept = shorter.steps
            start = begin
        block //= 2
    return Schedule(kept, schedule.seed)


def simplify(schedule: Schedule, fails: Fails) -> Schedule:
    """Return a schedule of as many steps that still fails, with fewer picks and lower numbers."""
    kept = schedule
    for place, step in enumerate(schedule.steps):
        for simpler in simpler_steps(step):
            steps = (*kept.steps[:place], simpler, *kept.steps[place + 1 :])
            candidate = Schedule(steps, kept.seed)
            if fails(candidate):
                kept = candidate
                break
    return kept


def simpler_steps(step: Step) -> Iterator[Step]:
    """Yield steps of the same kind, the simplest first: one field lower, or with fewer picks."""
    for entry in fields(step):
        value = getattr(step, entry.name)
        smaller = fewer(value) if isinstance(value, tuple) else lower(value)
        for other in dict.fromkeys(smaller):
            yield replace(step, **{entry.name: other})


def lower(number: int) -> list[int]:
    """Return a few numbers below `number`, the lowest first."""
    return [other for other in (0, 1, number // 2, number - 1) if 0 <= other < number]


def fewer(picks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return a few shorter picks, the shortest first, then as many of the lowest."""
    shorter = [picks[:count] for count in (1, 2, 4, len(picks) - 1) if 0 < count < len(picks)]
    lowest = tuple(range(len(picks)))
    return shorter + [lowest] * (picks != lowest)
