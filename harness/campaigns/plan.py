"""The plan of a `regress` run: its tasks, in order.

- A clean trial tests the built-in engine without a bug. It must pass.
- A hunt tests it with one bug in one runner. The expected property must detect the bug.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from paritybit.harness.campaigns.task import Task
from paritybit.harness.errors import MalformedError, require_known
from paritybit.harness.lockstep.config import TURNS, TrialConfig
from paritybit.reference.config import PRESETS
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.runners import RUNNERS, engine_runners
from paritybit.subjects.toggles import LocationScheme

EXAMPLES = 50
"""The fewest schedules for a hunt. A Hypothesis profile with more examples makes a run longer."""

NOTHING_EXPECTED = 16
"""The divisor of these schedules for a task that is to find nothing."""

BugOnRunner = tuple[str, str]


def all_hunts(runners: Iterable[str] = tuple(RUNNERS)) -> tuple[BugOnRunner, ...]:
    """Return each (bug, runner) such that the bug can be switched on in the runner."""
    return tuple(
        (name, runner) for name, bug in BUGS.items() for runner in runners if bug.fits(runner)
    )


def one_hunt_per_bug(runners: Iterable[str] = tuple(RUNNERS)) -> tuple[BugOnRunner, ...]:
    """Return each bug on one of the runners that it affects, in turn, without variants by site."""
    allowed = set(runners)
    hunts = []
    for place, (name, bug) in enumerate(BUGS.items()):
        affected = [runner for runner in bug.expected if runner in allowed]
        if affected and "." not in name:
            hunts.append((name, affected[place % len(affected)]))
    return tuple(hunts)


def hunts_of(bugs: Sequence[str], runners: Sequence[str]) -> tuple[BugOnRunner, ...]:
    """Return the requested hunts. Each bug is BUG or BUG@RUNNER.

    A bug without a runner gets `runners` or, if they are empty, all that it affects. Without bugs,
    all possible hunts are returned. Raises UnknownNameError for an unknown bug or runner, and
    MalformedError for a bug that cannot be switched on in the runner.
    """
    for runner in runners:
        require_known("runner", runner, RUNNERS)
    if not bugs:
        return all_hunts(runners or RUNNERS)
    found: list[BugOnRunner] = []
    for asked in bugs:
        name, _, runner = asked.partition("@")
        require_known("bug", name, BUGS)
        if runner:
            require_known("runner", runner, RUNNERS)
        wanted = [runner] if runner else runners or list(BUGS[name].expected or RUNNERS)
        unfit = [one for one in wanted if not BUGS[name].fits(one)]
        if unfit:
            valid = ", ".join(filter(BUGS[name].fits, RUNNERS))
            raise MalformedError(f"{name} cannot be switched on in {unfit[0]}; valid: {valid}")
        found += [(name, one) for one in wanted]
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class RunConfig:
    """The settings of a run.

    - `hunts`: the bugs to hunt, each with a runner. Their runners get clean trials too.
    - `examples`: schedules per hunt.
    - `every_scheme`: whether each runner gets a clean trial in each location scheme of the hunts,
      or in one of them.
    """

    device: str
    hunts: tuple[BugOnRunner, ...] = field(default_factory=all_hunts)
    presets: tuple[str, ...] = tuple(PRESETS)
    seed: int = 0
    examples: int = EXAMPLES
    every_scheme: bool = True

    @property
    def few(self) -> int:
        """The fewest schedules for a task that is to find nothing."""
        return max(2, self.examples // NOTHING_EXPECTED)

    @property
    def runners(self) -> tuple[str, ...]:
        """The runners of the hunts, in the order of their table."""
        under_test = {runner for _, runner in self.hunts}
        return tuple(name for name in RUNNERS if name in under_test)

    @property
    def overlapping(self) -> tuple[str, ...]:
        """For each engine, its first runner if that captures graphs and a bug needs overlap."""
        needed = any(BUGS[bug].overlap for bug, _ in self.hunts)
        firsts = {engine_runners(name): name for name in reversed(self.runners)}
        return tuple(
            name for name in reversed(firsts.values()) if needed and RUNNERS[name].captures
        )


def plan(settings: RunConfig) -> list[Task]:
    """Return the tasks of a run: clean trials, then hunts."""
    return clean_tasks(settings) + hunting_tasks(settings)


def clean_tasks(settings: RunConfig) -> list[Task]:
    """Return the clean trials of a run, each with a seed of its own.

    The fewer trials a run has, the more schedules each gets, so that few trials reach as much.
    """
    trials = list(clean_trials(settings))
    few = max(settings.few, settings.examples // (2 + len(trials)))
    return [Task(trial, seed, few) for seed, trial in enumerate(trials, settings.seed)]


def clean_trials(settings: RunConfig) -> Iterator[TrialConfig]:
    """Yield the trials that a clean build must pass, in the location schemes of the bugs."""
    hunted = {BUGS[bug].scheme for bug, _ in settings.hunts}
    schemes = [scheme for scheme in LocationScheme if scheme in hunted]

    def in_turn(runners: Iterable[str]) -> Iterator[TrialConfig]:
        for place, runner in enumerate(runners):
            yield trial_of(settings, runner, schemes[place % len(schemes)])

    if settings.every_scheme:
        for runner in settings.runners:
            yield from (trial_of(settings, runner, scheme) for scheme in schemes)
    else:
        yield from in_turn(settings.runners)
    for trial in in_turn(settings.overlapping):
        yield replace(trial, overlap=True, device="cpu")


def hunting_tasks(settings: RunConfig) -> list[Task]:
    """Return the hunts of a run."""
    tasks: list[Task] = []
    for bug, runner in settings.hunts:
        trial = trial_of(settings, runner, BUGS[bug].scheme).with_bug(bug)
        affected = runner in BUGS[bug].expected
        tasks.append(Task(trial, settings.seed, settings.examples if affected else settings.few))
    return tasks


def trial_of(settings: RunConfig, runner: str, scheme: LocationScheme) -> TrialConfig:
    """Return the trial of a runner with a location scheme.

    Runner and scheme together select preset, page size and dtype, so that all of them occur.
    """
    turn = list(RUNNERS).index(runner) + list(LocationScheme).index(scheme)
    preset = settings.presets[turn % len(settings.presets)]
    page_size, dtype = TURNS[turn % len(TURNS)]
    return TrialConfig(runner, preset, dtype, settings.device, scheme, page_size)
