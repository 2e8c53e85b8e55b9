"""Shrinks a failing schedule: removes requests and steps, then simplifies the other steps.

Hypothesis only draws schedules. Its own shrinker does not know about steps, and plays about five
times as many schedules for the same result.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from msgspec.structs import fields, replace
from paritybit.harness.schedules.schedule import Admit, Idle, Prefill, Schedule, Step

Fails = Callable[[Schedule], bool]

FEW = (1, 2)
"""The numbers of requests that are tried first. Most violations need no more."""


def shrink(schedule: Schedule, fails: Fails) -> Schedule:
    """Return a schedule that also fails, and is no longer and no more complex.

    `fails` is called once for each schedule that is tried.
    """
    fails = cache(fails)
    fewest = (with_requests(schedule, count) for count in FEW)
    kept = next((few for few in fewest if few != schedule and fails(few)), schedule)
    kept = cut(kept, fails)
    while True:
        simpler = simplify(kept, fails)
        kept = cut(simpler, fails, 1)
        if kept == simpler:
            return kept


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


def cut(schedule: Schedule, fails: Fails, block: int | None = None) -> Schedule:
    """Return a shorter schedule that still fails. Drops blocks of steps, last first.

    Blocks have at most `block` steps. None means any number.
    """
    kept = schedule.steps
    block = len(kept) if block is None else block
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
    """Return a schedule of as many steps that still fails, with fewer picks and lower numbers.

    All steps get their lowest numbers at once, then one step does, then one field of a step is
    lowered. Most schedules need few of their numbers, and one playing then tells all others.
    """
    kept = schedule
    places = range(len(schedule.steps))
    for some in (places, *([place] for place in places)):
        lowered = with_steps(kept, {place: lowest(kept.steps[place]) for place in some})
        if lowered != kept and fails(lowered):
            kept = lowered
    for place in places:
        for entry in fields(kept.steps[place]):
            simpler: Schedule | None = kept
            while simpler is not None:
                kept = simpler
                others = simpler_steps(kept.steps[place], entry.name)
                tried = (with_steps(kept, {place: other}) for other in others)
                simpler = next(filter(fails, tried), None)
    return kept


def with_steps(schedule: Schedule, others: Mapping[int, Step]) -> Schedule:
    """Return a schedule with other steps at some places."""
    steps = tuple(others.get(place, step) for place, step in enumerate(schedule.steps))
    return Schedule(steps, schedule.seed)


def lowest(step: Step) -> Step:
    """Return the step of the same kind with its first pick, and 0 for its other numbers."""
    values = {entry.name: getattr(step, entry.name) for entry in fields(step)}
    return replace(
        step,
        **{name: value[:1] if isinstance(value, tuple) else 0 for name, value in values.items()},
    )


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
