"""Hunting: Hypothesis draws schedules, lockstep judges them, and what fails is shrunk.

The hunter is seeded explicitly: the same seed and the same library versions give
the same schedules, and the same shrunk counterexample.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy

from harness.checks.play import Lockstep, Outcome
from harness.checks.table import STATE_PROPERTIES
from harness.schedules.generate import schedules
from harness.schedules.schedule import Schedule
from harness.schedules.shrink import shrink
from subjects.runners import RUNNERS


@dataclass
class HuntResult:
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

    def meets(self, lockstep: Lockstep, schedule: Schedule, target: str | None) -> bool:
        """Play one drawn schedule; keep it, and say so, if it is the first that fails."""
        if self.schedule is None:  # Hypothesis plays what failed once more.
            outcome = lockstep.play(schedule)
            self.add(outcome)
            if failed(outcome, target):
                self.schedule = schedule
        return self.schedule is not None

    def shrink(self, lockstep: Lockstep, target: str | None) -> None:
        """Shrink what was caught, looking for nothing but what is sought."""
        if self.schedule is None:
            return
        watched, ends = lockstep.properties, () if target is None else (target,)
        if target is not None:
            lockstep.watch(STATE_PROPERTIES | {target})
        self.schedule = shrink(
            self.schedule, lambda each: failed(lockstep.play(each, until=ends), target)
        )
        lockstep.watch(watched)


def failed(outcome: Outcome, target: str | None) -> bool:
    """Whether an outcome violates what is sought; None is anything."""
    return target in outcome.violated if target else bool(outcome.violations)


class _CaughtError(Exception):
    """Raised inside a hunt to tell Hypothesis that a schedule fails."""


def hunt(
    lockstep: Lockstep,
    target: str | None,
    seed_value: int,
    examples: int,
    *,
    shrinks: bool = True,
) -> HuntResult:
    """Draw up to `examples` schedules until one violates `sought` (None: anything), and shrink it.

    Violations of other properties are counted and not hunted; while shrinking, they are not
    looked for.
    """
    hunt_result = HuntResult()

    def search(schedule: Schedule) -> None:
        if hunt_result.meets(lockstep, schedule, target):
            raise _CaughtError

    with suppress(_CaughtError):
        draw(lockstep, search, seed_value, examples)
    if shrinks:
        hunt_result.shrink(lockstep, target)
    return hunt_result


def play_all(lockstep: Lockstep, seed_value: int, examples: int) -> HuntResult:
    """Draw `examples` schedules and play each, whatever it violates."""
    hunt_result = HuntResult()
    draw(lockstep, lambda s: hunt_result.add(lockstep.play(s)), seed_value, examples)
    return hunt_result


def draw(
    lockstep: Lockstep,
    use: Callable[[Schedule], None],
    seed_value: int,
    examples: int,
) -> None:
    """Hand `examples` generated schedules to `use`, until one raises."""
    trial = lockstep.trial
    under_test = RUNNERS[trial.runner].mode
    drawn = schedules(lockstep.pair.config, max(trial.buckets), lockstep.pair.modes, under_test)
    for_each_drawn(drawn, use, seed_value, examples)


def for_each_drawn(
    drawn: SearchStrategy[Schedule],
    use: Callable[[Schedule], None],
    seed_value: int,
    examples: int,
) -> None:
    """Hand `examples` schedules that Hypothesis draws to `use`, until one raises."""

    @seed(seed_value)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(drawn)
    def run(schedule: Schedule) -> None:
        use(schedule)

    run()


def first_failure(
    lockstep: Lockstep, candidates: Iterable[Schedule], target: str | None
) -> HuntResult:
    """Play given schedules until one violates `sought` (None: anything), and shrink it."""
    hunt_result = HuntResult()
    for schedule in candidates:
        if hunt_result.meets(lockstep, schedule, target):
            break
    hunt_result.shrink(lockstep, target)
    return hunt_result
