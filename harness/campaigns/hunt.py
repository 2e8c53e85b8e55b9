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
from paritybit.harness.checks.of_schedules.declared_state import ID as UNDECLARED
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.property import Violation
from paritybit.harness.checks.table import PROPERTIES, STATE_PROPERTIES
from paritybit.harness.errors import NoVerdictError
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.schedules.generate import schedules
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.harness.schedules.shrink import shrink
from paritybit.subjects.runners import RUNNERS

START_SECONDS = 600.0
SECONDS_PER_SCHEDULE = 60.0
"""How long a task may take: its start, captures and compilation included, and a schedule of it.

Many times what they take on a slow machine: whatever takes longer hangs.
"""


SHRINKING_STEPS = 1500
"""After so many steps a schedule is shrunk no further: some thirty seconds on a slow machine."""

FEW_STEPS = 150
"""Likewise over pools too large to be copied: a minute on a fast GPU."""


def time_limit(count: int) -> float:
    """Return the seconds in which a task that plays `count` schedules must end."""
    return START_SECONDS + SECONDS_PER_SCHEDULE * count


class PlayingFailedError(NoVerdictError):
    """An error of ours (the eager run, a check, an extra run) ended a playing: no verdict.

    Its message is the whole traceback of that error, with no absolute path.
    """


def whole(outcome: Outcome) -> Outcome:
    """Return the outcome of a playing. Raises PlayingFailedError for one that failed."""
    if outcome.error is not None:
        raise PlayingFailedError(outcome.error)
    return outcome


@dataclass
class HuntResult:
    """What a hunt did. `schedules` counts those drawn until the first that fails, or all of them.

    One that violates declared_state alone is kept, and more are drawn: what is wrong besides says
    whether any bit depends on that state. `telling` says that the one kept violates more.
    `violated` counts, by property, the drawn schedules that violated it. `most` are the largest
    numbers that any of their replays reached, by the names of `coverage.MOST`.
    `schedule` is the shrunk counterexample, if one was found; `drawn` is what it was shrunk
    from, `seen` what that violated, `before` what the same worlds had played before it. The
    counts of steps and replays are of the drawn schedules; shrinking does not add to them.
    `error` is the traceback of the first playing that an error of ours ended.
    """

    schedules: int = 0
    steps: int = 0
    replays: int = 0
    padded_replays: int = 0
    events: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    violated: Counter[str] = field(default_factory=Counter)
    schedule: Schedule | None = None
    drawn: Schedule | None = None
    seen: tuple[Violation, ...] = ()
    before: tuple[Schedule, ...] = ()
    error: str | None = None
    device_lost: bool = False
    telling: bool = False

    @property
    def spoiled(self) -> bool:
        """Whether the process that hunted must not go on."""
        return self.device_lost or self.error is not None

    @property
    def over(self) -> bool:
        """Whether nothing more is drawn: a schedule failed, or an error of ours ended one."""
        return self.telling or self.error is not None

    def add(self, outcome: Outcome) -> None:
        """Count one drawn schedule."""
        self.schedules += 1
        self.steps += outcome.steps
        self.replays += outcome.replays
        self.padded_replays += outcome.padded_replays
        self.events.update(outcome.events)
        self.most |= outcome.most
        self.violated.update(outcome.violated)
        self.error = self.error or outcome.error
        self.device_lost = self.device_lost or outcome.device_lost

    def ends_with(self, lockstep: Lockstep, schedule: Schedule, target: str | None) -> bool:
        """Play one drawn schedule, and keep it if it fails; return whether the hunt is over."""
        before = tuple(lockstep.history)
        outcome = lockstep.play(schedule, until=ends(target))
        self.add(outcome)
        if failed(outcome, target) and (self.schedule is None or telling(outcome, target)):
            self.schedule = self.drawn = schedule
            self.seen, self.before = outcome.violations, before
            self.telling = telling(outcome, target)
        return self.over

    def shrink(self, lockstep: Lockstep, target: str | None) -> None:
        """Shrink the schedule that was found, looking for nothing but the target.

        Once SHRINKING_STEPS steps are played, or FEW_STEPS over large pools, it is left as it is.
        """
        if self.schedule is None:
            return
        watched = lockstep.properties
        lockstep.watch(hunted(target, watched))

        played, most = 0, FEW_STEPS if lockstep.trial.large else SHRINKING_STEPS
        holding = holding_steps(lockstep, self.schedule, self.seen, target)

        def fails(schedule: Schedule) -> bool:
            nonlocal played, holding
            if played >= most:
                return False
            if holding and holding[: len(schedule.steps)] == schedule.steps:
                return False
            outcome = lockstep.play(schedule, until=ends(target))
            played += outcome.steps
            self.error = self.error or outcome.error
            if not failed(outcome, target) or telling(outcome, target) < self.telling:
                return False
            holding = holding_steps(lockstep, schedule, outcome.violations, target)
            return True

        if holding:  # The drawn schedule failed at the step after these.
            self.schedule = self.schedule.up_to(len(holding))
        self.schedule = shrink(self.schedule, fails)
        lockstep.watch(watched)


def ends(target: str | None) -> frozenset[str]:
    """Return the properties whose first violation ends a playing besides what always does."""
    return frozenset() if target is None else frozenset({target})


def hunted(target: str | None, watched: Iterable[str]) -> frozenset[str]:
    """Return what is judged while a target is hunted: it, and what ends a playing; else all."""
    return frozenset(watched) if target is None else STATE_PROPERTIES | ends(target)


def narrowed(
    lockstep: Lockstep, target: str | None, search: Callable[[Lockstep], HuntResult]
) -> HuntResult:
    """Return what a search for a target gives, judging by little else, which is faster.

    A search that finds nothing is repeated with everything judged that is watched.
    """
    watched = lockstep.properties
    if target is not None:
        lockstep.watch(hunted(target, watched))
        hunt_result = search(lockstep)
        lockstep.watch(watched)
        if hunt_result.over:
            return hunt_result
    return search(lockstep)


def holding_steps(
    lockstep: Lockstep, schedule: Schedule, seen: Iterable[Violation], target: str | None
) -> tuple[Step, ...]:
    """Return the steps of a failing schedule before the one that violates the target.

    No schedule that consists of the first few of them fails, so none of these need be played.
    There are no such steps where later ones have a say: where the target is judged at the end of a
    schedule, or where steps overlap, since these are planned ahead.
    """
    if target is None or PROPERTIES[target].at_end or lockstep.trial.overlap:
        return ()
    place = min((one.step for one in seen if one.property == target), default=0)
    return schedule.steps[:place]


def without_error(hunt_result: HuntResult) -> HuntResult:
    """Return a hunt's result. Raises PlayingFailedError if an error of ours ended a playing."""
    if hunt_result.error is not None:
        raise PlayingFailedError(hunt_result.error)
    return hunt_result


def failed(outcome: Outcome, target: str | None) -> bool:
    """Whether an outcome violates the target; None is any property. An error violates nothing."""
    if outcome.error is not None:
        return False
    return target in outcome.violated if target else bool(outcome.violations)


def telling(outcome: Outcome, target: str | None) -> bool:
    """Whether an outcome fails by more than undeclared state, where that is not what is hunted."""
    return failed(outcome, target) and (target is not None or outcome.violated != {UNDECLARED})


class EnoughDrawn(BaseException):  # No error: nothing went wrong.
    """Raised inside what uses drawn schedules so that Hypothesis draws no further one.

    No Exception: of those Hypothesis runs the last example again, and prints it at length.
    """


def hunt(
    lockstep: Lockstep,
    target: str | None,
    seed_value: int,
    examples: int,
    *,
    first: Iterable[Schedule] = (),
    shrinks: bool = True,
) -> HuntResult:
    """Draw up to `examples` schedules until one violates `target` (None: anything), and shrink it.

    Those given as `first` are played before any is drawn, and take the place of the scenes that are
    drawn first otherwise. Violations of other properties are counted and not hunted; while
    shrinking, they are not looked for. An error of ours ends the hunt too.
    """
    hunt_result = HuntResult()

    def search(schedule: Schedule) -> None:
        if hunt_result.ends_with(lockstep, schedule, target):
            raise EnoughDrawn

    with suppress(EnoughDrawn):
        given = tuple(first)
        for schedule in given:
            search(schedule)
        draw(lockstep.trial, search, seed_value, examples, scenes_first=not given)
    if shrinks:
        hunt_result.shrink(lockstep, target)
    return hunt_result


def play_all(lockstep: Lockstep, seed_value: int, examples: int) -> HuntResult:
    """Draw `examples` schedules and play all of them, whatever they violate."""
    hunt_result = HuntResult()

    def play(schedule: Schedule) -> None:
        hunt_result.add(lockstep.play(schedule))

    draw(lockstep.trial, play, seed_value, examples)
    return hunt_result


def draw(
    trial: TrialConfig,
    use: Callable[[Schedule], None],
    seed_value: int,
    examples: int,
    *,
    scenes_first: bool = True,
) -> None:
    """Hand `examples` schedules drawn for a trial to `use`, until one raises."""
    drawn = schedules(
        trial.model,
        trial.buckets,
        trial.token_buckets,
        trial.modes,
        RUNNERS[trial.runner].mode,
        scenes_first=scenes_first,
    )
    if examples:
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
    """Play given schedules until one violates `target` (None: anything), and shrink it."""
    hunt_result = HuntResult()
    for schedule in candidates:
        if hunt_result.ends_with(lockstep, schedule, target):
            break
    hunt_result.shrink(lockstep, target)
    return hunt_result
