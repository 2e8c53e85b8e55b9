"""The main job: the clean build first, then every bug, and one record of it all."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product

from harness.campaigns.task import GOOD, Result, Source, Task, run_in_turn
from harness.campaigns.workers import end, pool, undisturbed
from harness.checks.expectations import unaffected_reason
from harness.lockstep.config import TrialConfig
from harness.schedules.coverage import required_events
from reference.config import PRESETS
from subjects.bugs.catalogue import BUGS
from subjects.bugs.switching import missing_inputs
from subjects.runners import RUNNERS
from subjects.toggles import LocationScheme

CLEAN_SCHEDULES = 24
"""Generated clean schedules that the trials of a run share, each checked deeper than a hunt's."""

FEWEST_CLEAN = 4
"""Generated schedules of one clean trial at the least, however many trials there are."""

UNAFFECTED_SHARE = 16
"""A bug that cannot harm a runner is tried on this fraction of a hunt's schedules."""

TRAFFIC_SHARE = 12
"""Pieces of traffic that a trial plays, as the fraction of a hunt's schedules."""

SHAPES = ((4, "float32"), (1, "bfloat16"), (1, "float32"), (4, "bfloat16"))
"""Page sizes and dtypes that a run's trials take in turn."""


def all_hunts(runners: Iterable[str] = tuple(RUNNERS)) -> tuple[tuple[str, str], ...]:
    """Return every (bug, runner) that can be switched on, harmful or not."""
    return tuple(
        (name, runner)
        for name, bug in BUGS.items()
        for runner in runners
        if not missing_inputs(bug, runner)
    )


@dataclass(frozen=True)
class RunConfig:
    """What a run was asked for. `hunts` are (bug, runner); their runners are tried clean too."""

    device: str
    hunts: tuple[tuple[str, str], ...] = all_hunts()
    presets: tuple[str, ...] = tuple(PRESETS)
    seed: int = 0
    examples: int = 50
    command: str = "paritybit regress"

    @property
    def runners(self) -> tuple[str, ...]:
        """The runners on trial, in the order of their table."""
        under_test = {runner for _, runner in self.hunts}
        return tuple(name for name in RUNNERS if name in under_test)


@dataclass
class Run:
    """A run as it goes: results in the order they came, and how it ended."""

    settings: RunConfig
    results: list[Result] = field(default_factory=list)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.monotonic)
    interrupted: bool = False


def plan(settings: RunConfig) -> list[Task]:
    """Return the tasks of a run, clean ones first.

    Each runner is tried clean in every era, and each bug on the trial of its runner and era.
    """
    tasks: list[Task] = []
    share = max(FEWEST_CLEAN, CLEAN_SCHEDULES // (len(settings.runners) * len(LocationScheme)))
    for place, (runner, scheme) in enumerate(product(settings.runners, LocationScheme)):
        trial, seed = trial_of(settings, runner, scheme), settings.seed + place
        tasks.append(Task(trial, Source.GENERATED, seed, min(share, settings.examples)))
        if place % len(LocationScheme) == place // len(LocationScheme) % len(
            LocationScheme
        ):  # Each runner in one era.
            tasks.append(Task(trial, Source.TRAFFIC, seed, 1))
    for bug, runner in settings.hunts:
        trial = trial_of(settings, runner, BUGS[bug].scheme).with_bug(bug)
        affected = unaffected_reason(BUGS[bug], runner) is None
        few = max(1, settings.examples // (1 if affected else UNAFFECTED_SHARE))
        tasks.append(Task(trial, Source.GENERATED, settings.seed, few))
        if affected and BUGS[bug].in_traffic:
            few = max(1, settings.examples // TRAFFIC_SHARE)
            tasks.append(Task(trial, Source.TRAFFIC, settings.seed, few))
    return tasks


def trial_of(settings: RunConfig, runner: str, scheme: LocationScheme) -> TrialConfig:
    """Return the trial of a runner in an era: presets, page sizes and dtypes take turns."""
    turn = list(RUNNERS).index(runner) + list(LocationScheme).index(scheme)
    preset = settings.presets[turn % len(settings.presets)]
    page_size, dtype = SHAPES[turn % len(SHAPES)]
    return TrialConfig(runner, preset, dtype, settings.device, scheme, page_size)


def execute(tasks: Sequence[Task], workers: int, on_result: Callable[[Result], None]) -> None:
    """Run tasks in `workers` processes, handing on each result as it comes.

    A process that died or lost its device is replaced before it is given another task.
    """
    waiting, last = list(tasks), dict[int, Task]()
    with _processes(workers) as processes:
        busy: dict[Future[Result], tuple[int, Task]] = {}
        while waiting or busy:
            for place in set(range(workers)) - {place for place, _ in busy.values()}:
                if waiting:
                    task = _choose(waiting, last.get(place), [each for _, each in busy.values()])
                    waiting.remove(task)
                    last[place] = task
                    with undisturbed():
                        busy[processes[place].submit(run_in_turn, task)] = place, task
            done, _ = wait(busy, return_when=FIRST_COMPLETED)
            for each in done:
                place, task = busy.pop(each)
                error = each.exception()
                result = Result.of_failure(task, error) if error else each.result()
                if result.device_lost:
                    processes[place].shutdown()
                    processes[place] = pool(1)
                on_result(result)


def _choose(waiting: Sequence[Task], last: Task | None, busy: Sequence[Task]) -> Task:
    """Return what a process should run next: what shares its last trial, or a trial no one has.

    A trial's bugs share it with the clean build: they are held against it.
    """
    same = [each for each in waiting if last is not None and each.clean_trial == last.clean_trial]
    taken = {each.clean_trial for each in busy}
    new = [each for each in waiting if each.clean_trial not in taken]
    return (same or new or waiting)[0]


@contextmanager
def _processes(count: int) -> Iterator[list[ProcessPoolExecutor]]:
    """Give `count` fresh processes; on the way out by an error they are ended at once."""
    processes = [pool(1) for _ in range(count)]
    try:
        yield processes
    except BaseException:
        for each in processes:
            end(each)
        raise
    for each in processes:
        each.shutdown()


def verdict(run: Run) -> tuple[str, str]:
    """Return green, red or interrupted, and one sentence that says why."""
    clean = [each for each in run.results if each.task.bug is None]
    bugs = [each for each in run.results if each.task.bug is not None]
    good = [each for each in bugs if each.status in GOOD]
    clean_good = [each for each in clean if each.status in GOOD]
    message = (
        f"clean: {len(clean_good)} of {len(clean)} trials green;"
        f" bugs: {len(good)} of {len(bugs)} hunts ended as the table says"
    )
    missing = unreached(run)
    if missing and not run.interrupted:
        message += f"; never reached: {', '.join(missing)}"
    if run.interrupted:
        return "interrupted", f"cut short; so far {message}"
    whole = len(good) == len(bugs) and len(clean_good) == len(clean) and not missing
    return ("green" if whole and clean else "red"), message


def unreached(run: Run) -> list[str]:
    """Return the required events that the clean trials, taken together, never reached."""
    events: Counter[str] = Counter()
    for result in run.results:
        if result.task.bug is None:
            events += result.hunt_result.events
    return [event for event in required_events(run.settings.runners) if not events[event]]
