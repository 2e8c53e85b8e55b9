"""Hunting: Hypothesis draws schedules, lockstep judges them, and what fails is shrunk.

The hunter is seeded explicitly: the same seed and the same library versions give
the same schedules, and the same shrunk counterexample.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from harness.generate import schedules
from harness.lockstep import Lockstep, Outcome
from harness.schedule import Schedule


@dataclass
class Catch:
    """What a hunt did. `schedules` counts those drawn before the first catch, or all of them.

    `violated` counts, by property, the drawn schedules that violated it.
    `schedule` is the shrunk counterexample, if one was found. The counts of steps and
    replays are of the drawn schedules; shrinking does not add to them.
    """

    schedules: int = 0
    steps: int = 0
    replays: int = 0
    padded_replays: int = 0
    events: Counter[str] = field(default_factory=Counter)
    violated: Counter[str] = field(default_factory=Counter)
    schedule: Schedule | None = None

    def add(self, outcome: Outcome) -> None:
        """Count one drawn schedule."""
        self.schedules += 1
        self.steps += outcome.steps
        self.replays += outcome.replays
        self.padded_replays += outcome.padded_replays
        self.events.update(outcome.events)
        self.violated.update(outcome.violated)


class _CaughtError(Exception):
    """Raised inside a hunt to tell Hypothesis that a schedule fails."""


def hunt(
    lockstep: Lockstep,
    sought: str | None,
    seed_value: int,
    examples: int,
    *,
    shrink: bool = True,
) -> Catch:
    """Draw up to `examples` schedules until one violates `sought` (None: anything), and shrink it.

    Violations of other properties are counted and not hunted.
    """
    catch = Catch()

    def caught(outcome: Outcome) -> bool:
        return sought in outcome.violated if sought else bool(outcome.violations)

    def search(schedule: Schedule) -> None:
        outcome = lockstep.play(schedule)
        if catch.schedule is None:
            catch.add(outcome)
        if caught(outcome):
            catch.schedule = schedule
            raise _CaughtError

    with suppress(_CaughtError):
        draw(lockstep, search, seed_value, examples, shrink=shrink)
    return catch


def survey(lockstep: Lockstep, seed_value: int, examples: int) -> Catch:
    """Draw `examples` schedules and play each, whatever it violates."""
    catch = Catch()
    draw(lockstep, lambda s: catch.add(lockstep.play(s)), seed_value, examples, shrink=False)
    return catch


def draw(
    lockstep: Lockstep,
    use: Callable[[Schedule], None],
    seed_value: int,
    examples: int,
    *,
    shrink: bool,
) -> None:
    """Hand `examples` generated schedules to `use`; one that raises is shrunk and raised again."""
    drawn = schedules(lockstep.arms.config, max(lockstep.trial.buckets))

    @seed(seed_value)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(drawn)
    def run(schedule: Schedule) -> None:
        use(schedule)

    run()


def sweep(
    lockstep: Lockstep,
    candidates: Iterable[Schedule],
    sought: str | None,
) -> Catch:
    """Play given schedules until one violates `sought` (None: anything), and cut it short.

    Cutting keeps the failing schedule's order: steps are dropped, last first, in
    blocks that halve, for as long as it still fails.
    """
    catch = Catch()

    def caught(schedule: Schedule) -> bool:
        outcome = lockstep.play(schedule)
        if catch.schedule is None:
            catch.add(outcome)
        return sought in outcome.violated if sought else bool(outcome.violations)

    for schedule in candidates:
        if caught(schedule):
            catch.schedule = schedule
            catch.schedule = cut(schedule, caught)
            break
    return catch


def cut(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Return a shorter schedule that still fails, by dropping blocks of steps."""
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
