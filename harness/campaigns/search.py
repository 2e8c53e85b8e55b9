"""Searches for a schedule with a violation: Hypothesis draws schedules, and a player plays them.

The first schedule with a violation ends the search, and is shrunk. A search has a target, which is
the property that must be violated. None stands for any property, as in a clean trial. The same seed
and the same library versions give the same schedules and counterexample.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from paritybit.harness.checks.play import Outcome, SchedulePlayer
from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.table import CHEAP_PROPERTIES, DIVERGING_PROPERTIES
from paritybit.harness.errors import NoVerdictError
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.boundaries import Ground
from paritybit.harness.schedules.generate import schedules
from paritybit.harness.schedules.schedule import Schedule
from paritybit.harness.schedules.shrink import shrink
from paritybit.subjects.runners import RUNNERS

SHRINKING_STEPS = 1500
"""The limit of steps played to shrink a schedule: about 30 seconds on a slow machine."""


class PlayingFailedError(NoVerdictError):
    """An internal error in the eager run, a check or an extra run ended a playing: no verdict.

    The message is the whole traceback without absolute paths.
    """


@dataclass
class SearchResult:
    """The result of a search. Counts include all schedules played, except those played to shrink.

    - `schedules`: the schedules played until one had a violation or an internal error.
    - `compared`, `overlapped`: see `Outcome`.
    - `violated`: how many of them violated each property.
    - `schedule`: the shrunk counterexample, or None.
    - `unshrunk`: the schedule that it was shrunk from.
    - `seen`: the violations of `unshrunk`.
    - `error`: the traceback of the first playing that an internal error ended.
    """

    schedules: int = 0
    steps: int = 0
    replays: int = 0
    padded_replays: int = 0
    compared: int = 0
    overlapped: int = 0
    violated: Counter[str] = field(default_factory=Counter)
    schedule: Schedule | None = None
    unshrunk: Schedule | None = None
    seen: tuple[Violation, ...] = ()
    error: str | None = None

    def add(self, outcome: Outcome) -> None:
        """Count one schedule."""
        self.schedules += 1
        self.steps += outcome.steps
        self.replays += outcome.replays
        self.padded_replays += outcome.padded_replays
        self.compared += outcome.compared
        self.overlapped += outcome.overlapped
        self.violated.update(outcome.violated)
        self.error = self.error or outcome.error

    def play(self, player: SchedulePlayer, schedule: Schedule, target: str | None) -> bool:
        """Play a schedule, count it, and keep it if it fails. Return whether to search no more."""
        outcome = player.play(schedule, until=ending_properties(target))
        self.add(outcome)
        if violates(outcome, target) and self.schedule is None:
            self.schedule = self.unshrunk = schedule
            self.seen = outcome.violations
        return self.schedule is not None or self.error is not None

    def shrink(self, player: SchedulePlayer, target: str | None) -> None:
        """Shrink the schedule that was found. Shrinking ends after SHRINKING_STEPS steps.

        A shorter schedule that a bug ends with an error does not fail as the found one does.
        """
        if self.schedule is None:
            return
        played = 0

        def fails(schedule: Schedule) -> bool:
            nonlocal played
            if played >= SHRINKING_STEPS:
                return False
            outcome = player.play(schedule, until=ending_properties(target))
            played += outcome.steps
            return violates(outcome, target)

        steps = [one.step for one in self.seen if target in {None, one.property}]
        short = self.schedule.up_to(min(steps))
        self.schedule = shrink(short if fails(short) else self.schedule, fails)


def ending_properties(target: str | None) -> frozenset[str]:
    """Return further properties whose first violation ends a playing."""
    return frozenset() if target is None else frozenset({target})


def hunt_properties(target: str | None) -> frozenset[str]:
    """Return the properties that a hunt checks: the target and those that end a playing.

    Without a target these are all properties of steps.
    """
    return CHEAP_PROPERTIES if target is None else DIVERGING_PROPERTIES | ending_properties(target)


Played = TypeVar("Played", Outcome, SearchResult)


def without_error(played: Played) -> Played:
    """Return an outcome or a search's result. Raises PlayingFailedError if it has an error."""
    if played.error is not None:
        raise PlayingFailedError(played.error)
    return played


def violates(outcome: Outcome, target: str | None) -> bool:
    """Whether an outcome violates the target. None means any property."""
    if outcome.error is not None:
        return False
    return target in outcome.violated if target else bool(outcome.violations)


class EnoughDrawn(BaseException):  # Not an error.
    """Raised by the user of drawn schedules so that Hypothesis draws no further one.

    Not an Exception, because Hypothesis would run the last example again and print it.
    """


def search(
    player: SchedulePlayer,
    target: str | None,
    seed_value: int,
    examples: int,
) -> SearchResult:
    """Draw up to `examples` schedules until one violates `target` (None: anything), and shrink it.

    Violations of other properties are counted. An internal error ends the search.
    """
    found = SearchResult()

    def play(schedule: Schedule) -> None:
        if found.play(player, schedule, target):
            raise EnoughDrawn

    with suppress(EnoughDrawn):
        draw_schedules(player.trial, play, seed_value, examples)
    found.shrink(player, target)
    return found


def draw_schedules(
    trial: TrialConfig, use: Callable[[Schedule], None], seed_value: int, examples: int
) -> None:
    """Call `use` with `examples` schedules drawn for a trial, until it raises."""
    mode = RUNNERS[trial.runner].mode
    ground = Ground(trial.model, trial.buckets, trial.token_buckets, trial.modes, mode)

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
    @given(schedules(ground))
    def run(schedule: Schedule) -> None:
        use(schedule)

    run()
