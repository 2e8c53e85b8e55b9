"""Shrinks a failing schedule: removes requests and steps, then simplifies the other steps.

Hypothesis only draws schedules. Its own shrinker does not know about steps, and plays about five
times as many schedules for the same result.
"""

from collections.abc import Callable, Iterator
from functools import cache

from msgspec.structs import fields, replace
from paritybit.harness.schedules.passes import shrunk
from paritybit.harness.schedules.schedule import Admit, Idle, Prefill, Schedule, Step

Fails = Callable[[Schedule], bool]

FEW = (1, 2)
"""The numbers of requests that are tried first. Most violations need no more."""


def shrink(schedule: Schedule, fails: Fails) -> Schedule:
    """Return a schedule that also fails, and is no longer and no more complex.

    `fails` is called once for each schedule that is tried.
    """
    return shrunk(schedule, PASSES, cache(fails))


def fewer_requests(schedule: Schedule) -> Iterator[Schedule]:
    """Propose a schedule with few requests."""
    for count in FEW:
        yield with_requests(schedule, count)


def with_requests(schedule: Schedule, count: int) -> Schedule:
    """Return the schedule without requests after the first `count`, and without picks of them."""
    steps: list[Step] = []
    left = count
    for step in schedule.steps:
        kept: Step | None = step
        if isinstance(step, Prefill):
            kept = with_values(step, "prompts", step.prompts[:left])
            left -= len(step.prompts[:left])
        elif isinstance(step, Admit):
            kept = step if left else None
            left = max(0, left - 1)
        elif hasattr(step, "picks"):
            kept = with_values(step, "picks", tuple(pick for pick in step.picks if pick < count))
        elif hasattr(step, "pick") and not isinstance(step, Idle):
            kept = step if step.pick < count else None
        if kept is not None:
            steps.append(kept)
    return Schedule(tuple(steps), schedule.seed)


def with_values(step: Step, name: str, values: tuple[int, ...]) -> Step | None:
    """Return a step with fewer values in a field, or None if none of several values is left."""
    return replace(step, **{name: values}) if values or not getattr(step, name) else None


def fewer_steps(schedule: Schedule) -> Iterator[Schedule]:
    """Propose to drop a block of steps: half of them, a quarter, and so on, last first."""
    steps, block = schedule.steps, len(schedule.steps)
    while block:
        for end in range(len(steps), 0, -block):
            yield Schedule(steps[: max(0, end - block)] + steps[end:], schedule.seed)
        block //= 2


def lower_numbers(schedule: Schedule) -> Iterator[Schedule]:
    """Propose a lower number, or fewer picks, in one field of a step."""
    steps = schedule.steps
    for place, step in enumerate(steps):
        for entry in fields(step):
            for other in simpler_steps(step, entry.name):
                yield Schedule((*steps[:place], other, *steps[place + 1 :]), schedule.seed)


PASSES = (fewer_requests, fewer_steps, lower_numbers)


def simpler_steps(step: Step, name: str) -> Iterator[Step]:
    """Yield steps of the same kind, the simplest first: a field is lower, or has fewer picks."""
    value = getattr(step, name)
    smaller = fewer(value) if isinstance(value, tuple) else lower(value)
    for other in dict.fromkeys(smaller):
        yield replace(step, **{name: other})


def lower(number: int) -> list[int]:
    """Return a few numbers below `number`, the lowest first."""
    return [other for other in (0, 1, number // 2, number - 1) if 0 <= other < number]


def fewer(picks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return a few shorter picks, shortest first, then equally many of the lowest picks."""
    shorter = [picks[:count] for count in (1, 2, 4, len(picks) - 1) if 0 < count < len(picks)]
    lowest = tuple(range(len(picks)))
    return shorter + [lowest] * (picks != lowest)
