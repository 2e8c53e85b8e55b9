"""The `regress` campaign: clean trials first, then a hunt for each bug, and the verdict.

`plan` makes the tasks, `run_tasks` runs them, and `verdict` judges the results.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import product
from operator import attrgetter

from paritybit.harness.campaigns.executor import Campaign, execute
from paritybit.harness.campaigns.scenes import (
    ground_of,
    handed_over,
    longest,
    share_of_scenes,
    with_prompts,
)
from paritybit.harness.campaigns.task import (
    OPEN,
    Result,
    Task,
    result_of,
    run_in_turn,
)
from paritybit.harness.checks.expectations import unaffected_reason
from paritybit.harness.lockstep.config import TURNS, TrialConfig
from paritybit.harness.machine.workers import HERE, Workers
from paritybit.harness.schedules.boundaries import Row, scenes
from paritybit.harness.schedules.buckets import SMALLEST, SMALLEST_TOKENS
from paritybit.harness.schedules.coverage import (
    OVERLAP_REQUIRED,
    required_at_edges,
    required_events,
    required_of_chains,
    required_together,
)
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference.config import CHAIN, PRESETS
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import lacking
from paritybit.subjects.runners import RUNNERS, engine_runners
from paritybit.subjects.toggles import LocationScheme

CLEAN_SCHEDULES = 24
"""Generated schedules that are divided among the trials of each runner with each scheme."""

FEWEST_CLEAN = 2
"""The fewest that such a trial gets. The smallest sizes get as many."""

OVERLAPPING = 4
"""Generated schedules per clean trial with overlapping steps."""

NAMED = 3
"""The number of unreached states that a verdict lists. The page lists all."""

UNAFFECTED_SHARE = 16
"""The divisor of a hunt's schedules for a bug that cannot affect the runner."""

TASKS = Campaign(
    run_in_turn,
    shared=attrgetter("clean_trial"),
    own=attrgetter("trial"),
    seconds=attrgetter("seconds"),
    label=attrgetter("label"),
)
"""Runs the tasks. Tasks with one clean trial go to one process if possible, which keeps it."""


def all_hunts(
    runners: Iterable[str] = tuple(RUNNERS), *, overlap: bool = True
) -> tuple[tuple[str, str], ...]:
    """Return each (bug, runner) such that the bug can be switched on in the runner.

    Without `overlap`, bugs that need overlapping steps are left out.
    """
    return tuple(
        (name, runner)
        for name, bug in BUGS.items()
        for runner in runners
        if not lacking(bug, runner) and (overlap or not bug.overlap)
    )


@dataclass(frozen=True)
class RunConfig:
    """The settings of a run.

    - `hunts`: pairs (bug, runner). Their runners get clean trials too.
    - `examples`: schedules per hunt.
    """

    device: str
    hunts: tuple[tuple[str, str], ...] = all_hunts()
    presets: tuple[str, ...] = tuple(PRESETS)
    seed: int = 0
    examples: int = 50
    command: str = "paritybit regress"
    workers: Workers = HERE

    @property
    def runners(self) -> tuple[str, ...]:
        """The runners of the hunts, in the order of their table."""
        under_test = {runner for _, runner in self.hunts}
        return tuple(name for name in RUNNERS if name in under_test)

    @property
    def schemes(self) -> tuple[LocationScheme, ...]:
        """The location schemes of clean trials: those of the bugs."""
        hunted = {BUGS[bug].scheme for bug, _ in self.hunts}
        return tuple(scheme for scheme in LocationScheme if scheme in hunted)

    @property
    def overlapping(self) -> tuple[str, ...]:
        """The runners that get a clean trial with overlapping steps: one of each engine.

        Empty unless a bug of the run needs overlapping steps. Runners that capture nothing are left
        out.
        """
        if not any(BUGS[bug].overlap for bug, _ in self.hunts):
            return ()
        return tuple(name for name in self.one_of_each_engine if RUNNERS[name].captures)

    @property
    def of_one_branch(self) -> tuple[TrialConfig, ...]:
        """The clean versions of the trials whose bugs need drafts that are chains."""
        hunts = ((BUGS[bug], runner) for bug, runner in self.hunts)
        trials = [
            replace(trial_of(self, runner, bug.scheme), topk=CHAIN.topk)
            for bug, runner in hunts
            if bug.topk == CHAIN.topk
        ]
        return tuple(dict.fromkeys(trials))

    @property
    def whole(self) -> bool:
        """Whether all bugs that need no overlapping steps are hunted on all runners."""
        return set(all_hunts(overlap=False)) <= set(self.hunts)

    @property
    def chained(self) -> Mapping[str, LocationScheme]:
        """The runners that draft chains in one clean trial, each with the scheme of that trial.

        They speculate, and are tried in the scheme though none of its bugs is hunted on them.
        """
        hunted = {(runner, BUGS[bug].scheme) for bug, runner in self.hunts}
        tried = product(self.runners, reversed(self.schemes))
        free = [pair for pair in tried if pair not in hunted]
        return {runner: scheme for runner, scheme in free if RUNNERS[runner].mode.speculates}

    @property
    def at_edges(self) -> tuple[str, ...]:
        """The runners that get a clean trial with the smallest sizes: one of each engine.

        Empty unless the run has all hunts.
        """
        return self.one_of_each_engine if self.whole else ()

    @property
    def one_of_each_engine(self) -> tuple[str, ...]:
        """The first runner of each engine."""
        firsts = {engine_runners(name): name for name in reversed(self.runners)}
        return tuple(reversed(firsts.values()))

    @property
    def required_events(self) -> tuple[str, ...]:
        """The states that the clean trials together must reach."""
        overlapping = OVERLAP_REQUIRED if self.overlapping else ()
        at_edges = required_at_edges(self.at_edges)
        return (*self.required_in_order, *overlapping, *at_edges)

    @property
    def required_in_order(self) -> tuple[str, ...]:
        """What trials of the usual sizes must reach where no steps overlap."""
        everywhere = required_events(self.runners)
        return (*everywhere, *required_together(self.runners), *required_of_chains(self.chained))


@dataclass
class Run:
    """A run in progress. `results` are in the order in which they arrived."""

    settings: RunConfig
    results: list[Result] = field(default_factory=list)
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    clock: float = field(default_factory=time.monotonic)
    interrupted: bool = False

    @property
    def lost(self) -> int:
        """The number of planned tasks without a result."""
        return len(plan(self.settings)) - len(self.results)

    @property
    def undecided(self) -> bool:
        """Whether no result is wrong, but a task has no verdict or a state was never reached."""
        wrong = [result for result in self.results if not result.status.expected]
        if any(result.status not in OPEN or result.finding is not None for result in wrong):
            return False
        return bool(wrong or self.lost or unreached(self))


def plan(settings: RunConfig) -> list[Task]:
    """Return the tasks of a run: clean trials, then hunts."""
    return clean_tasks(settings) + hunting_tasks(settings)


def clean_tasks(settings: RunConfig) -> list[Task]:
    """Return the clean trials of a run.

    | trials | schedules |
    |---|---|
    | each runner with each location scheme | scenes and generated |
    | `overlapping`: one runner of each engine | a scene and generated, with overlapping steps |
    | `of_one_branch`: drafts that are chains | scenes and generated |
    | `at_edges`: one runner of each engine | scenes and generated, with the smallest sizes |
    Drafts are chains in one trial of each speculating runner.
    """
    schemes = settings.schemes
    trials = [
        chained(settings, trial_of(settings, runner, scheme))
        for runner in settings.runners
        for scheme in schemes
    ]
    tasks: list[Task] = []
    for seed, trial in enumerate(trials, settings.seed):
        few = max(FEWEST_CLEAN, CLEAN_SCHEDULES // len(trials))
        first = (share_of_scenes(trial, schemes),)
        tasks.append(Task(trial, seed, min(few, settings.examples), first))
    seed = settings.seed + len(trials)
    for place, runner in enumerate(settings.overlapping):
        trial = trial_of(settings, runner, schemes[place % len(schemes)])
        trial = replace(trial, overlap=True, device="cpu")
        few = min(OVERLAPPING, settings.examples)
        tasks.append(Task(trial, seed, few, (handed_over(trial),)))
        seed += 1
    for trial in settings.of_one_branch:
        tasks.append(Task(trial, seed, 1, (with_prompts(trial),)))
        seed += 1
    for place, runner in enumerate(settings.at_edges):
        trial = trial_of(settings, runner, schemes[place % len(schemes)])
        trial = replace(trial, buckets=SMALLEST, token_buckets=SMALLEST_TOKENS)
        event = "many" if place == 0 else "evicted"
        steps = scenes(ground_of(trial), [Row(max(trial.buckets), "one", event)])
        few = min(FEWEST_CLEAN, settings.examples)
        tasks.append(Task(trial, seed, few, (Schedule(steps), longest(trial))))
        seed += 1
    return tasks


def hunting_tasks(settings: RunConfig) -> list[Task]:
    """Return the hunts of a run."""
    tasks: list[Task] = []
    for bug, runner in settings.hunts:
        trial = trial_of(settings, runner, BUGS[bug].scheme).with_bug(bug)
        affected = unaffected_reason(BUGS[bug], runner) is None
        few = max(1, settings.examples // (1 if affected else UNAFFECTED_SHARE))
        tasks.append(Task(trial, settings.seed, few))
    return tasks


def trial_of(settings: RunConfig, runner: str, scheme: LocationScheme) -> TrialConfig:
    """Return the trial of a runner with a location scheme.

    Runner and scheme together select preset, page size and dtype, so that all of them occur.
    """
    turn = list(RUNNERS).index(runner) + list(LocationScheme).index(scheme)
    preset = settings.presets[turn % len(settings.presets)]
    page_size, dtype = TURNS[turn % len(TURNS)]
    return TrialConfig(runner, preset, dtype, settings.device, scheme, page_size)


def chained(settings: RunConfig, trial: TrialConfig) -> TrialConfig:
    """Return a clean trial with drafts that are chains, if it is to have them."""
    if trial.scheme is not settings.chained.get(trial.runner):
        return trial
    return replace(trial, topk=CHAIN.topk)


def run_tasks(tasks: Sequence[Task], workers: Workers, on_result: Callable[[Result], None]) -> None:
    """Run tasks with `workers`, sorted by `order`. `on_result` is called with each result."""
    execute(TASKS, sorted(tasks, key=order), workers, lambda ended: on_result(result_of(ended)))


def order(task: Task) -> tuple[bool, bool, bool]:
    """Return the key by which the tasks of a run are sorted.

    Clean trials come first, those whose steps overlap before the others because they take longest.
    Hunts of bugs that cannot affect their runner detect nothing and come last.
    """
    hunt = task.bug is not None
    return hunt, hunt and task.target is None, not task.trial.overlap


def verdict(run: Run) -> tuple[str, str]:
    """Return green, red or interrupted, and a sentence with the reason.

    A run is green if all planned tasks ended as expected and all required states were reached. If
    all clean trials pass, the sentence lists the states that were never reached. A failing trial
    stops early, so its coverage is incomplete.
    """
    clean = [result for result in run.results if result.task.bug is None]
    bugs = [result for result in run.results if result.task.bug is not None]
    good = [result for result in bugs if result.status.expected]
    clean_good = [result for result in clean if result.status.expected]
    message = (
        f"{len(clean_good)} of {len(clean)} clean trials passed;"
        f" {len(good)} of {len(bugs)} hunts ended as expected"
    )
    lost, missing = run.lost, unreached(run)
    if lost and not run.interrupted:
        message += f"; {lost} of {len(run.results) + lost} trials and hunts gave no result"
    if missing and not run.interrupted and len(clean_good) == len(clean):
        message += f"; never reached: {first_of(missing)}"
    if run.interrupted:
        rest = f"; {lost} of {len(run.results) + lost} did not finish" if lost else ""
        return "interrupted", f"so far, {message}{rest}"
    whole = len(good) == len(bugs) and len(clean_good) == len(clean) and not (lost or missing)
    return ("green" if whole and clean else "red"), message


def first_of(names: Sequence[str]) -> str:
    """Return the first NAMED names, and the number of the others."""
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def unreached(run: Run) -> list[str]:
    """Return the required events that the clean trials, taken together, never reached."""
    events: Counter[str] = Counter()
    for result in run.results:
        if result.task.bug is None:
            events += result.hunt_result.events
    return [event for event in run.settings.required_events if not events[event]]
