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

from harness.generate import schedules
from harness.lockstep import Lockstep, Outcome
from harness.schedule import Schedule
from harness.shrink import shrink
from harness.violation import PARTING_PROPERTIES
from subjects.runners import RUNNERS


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

    def meets(self, lockstep: Lockstep, schedule: Schedule, sought: str | None) -> bool:
        """Play one drawn schedule; keep it, and say so, if it is the first that fails."""
        if self.schedule is None:  # Hypothesis plays what failed once more.
            outcome = lockstep.play(schedule)
            self.add(outcome)
            if failed(outcome, sought):
                self.schedule = schedule
        return self.schedule is not None

    def shrink(self, lockstep: Lockstep, sought: str | None) -> None:
        """Shrink what was caught, looking for nothing but what is sought."""
        if self.schedule is None:
            return
        watched, ends = lockstep.properties, () if sought is None else (sought,)
        if sought is not None:
            lockstep.watch(PARTING_PROPERTIES | {sought})
        self.schedule = shrink(
            self.schedule, lambda each: failed(lockstep.play(each, until=ends), sought)
        )
        lockstep.watch(watched)


def failed(outcome: Outcome, sought: str | None) -> bool:
    """Whether an outcome violates what is sought; None is anything."""
    return sought in outcome.violated if sought else bool(outcome.violations)


class _CaughtError(Exception):
    """Raised inside a hunt to tell Hypothesis that a schedule fails."""


def hunt(
    lockstep: Lockstep,
    sought: str | None,
    seed_value: int,
    examples: int,
    *,
    shrinks: bool = True,
) -> Catch:
    """Draw up to `examples` schedules until one violates `sought` (None: anything), and shrink it.

    Violations of other properties are counted and not hunted; while shrinking, they are not
    looked for.
    """
    catch = Catch()

    def search(schedule: Schedule) -> None:
        if catch.meets(lockstep, schedule, sought):
            raise _CaughtError

    with suppress(_CaughtError):
        draw(lockstep, search, seed_value, examples)
    if shrinks:
        catch.shrink(lockstep, sought)
    return catch


def survey(lockstep: Lockstep, seed_value: int, examples: int) -> Catch:
    """Draw `examples` schedules and play each, whatever it violates."""
    catch = Catch()
    draw(lockstep, lambda s: catch.add(lockstep.play(s)), seed_value, examples)
    return catch


def draw(
    lockstep: Lockstep,
    use: Callable[[Schedule], None],
    seed_value: int,
    examples: int,
) -> None:
    """Hand `examples` generated schedules to `use`, until one raises."""
    trial = lockstep.trial
    tried = RUNNERS[trial.runner].mode
    drawn = schedules(lockstep.arms.config, max(trial.buckets), trial.modes, tried)
    hand_out(drawn, use, seed_value, examples)


def hand_out(
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


def sweep(lockstep: Lockstep, candidates: Iterable[Schedule], sought: str | None) -> Catch:
    """Play given schedules until one violates `sought` (None: anything), and shrink it."""
    catch = Catch()
    for schedule in candidates:
        if catch.meets(lockstep, schedule, sought):
            break
    catch.shrink(lockstep, sought)
    return catch
