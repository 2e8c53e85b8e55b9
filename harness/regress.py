"""The main job: the clean build first, then every bug, and one record of it all."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.case import Case, write_case
from harness.coverage import REQUIRED_EVENTS
from harness.record import environment
from harness.schedule import to_json
from harness.tasks import GOOD, Finding, Result, Source, Task, run_task
from harness.trial import Trial
from harness.violation import PROPERTIES
from harness.workers import end, pool, undisturbed
from reference.config import PRESETS
from subjects.behaviour import Era
from subjects.bugs import BUGS
from subjects.contracts import CONTRACTS, contract

CLEAN_SHARE = 5
"""A clean trial plays this fraction of the examples: there are many, each checked deeper."""

TRAFFIC_SHARE = 25
"""Pieces of traffic that a trial plays, as the fraction of its schedules."""


@dataclass(frozen=True)
class Settings:
    """What a run was asked for. Empty tuples mean all there are."""

    device: str
    runner: str = "decode"
    presets: tuple[str, ...] = tuple(PRESETS)
    bugs: tuple[str, ...] = tuple(BUGS)
    seed: int = 0
    examples: int = 50
    command: str = "paritybit regress"


@dataclass
class Run:
    """A run as it goes: results in the order they came, and how it ended."""

    settings: Settings
    results: list[Result] = field(default_factory=list)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.monotonic)
    interrupted: bool = False


def plan(settings: Settings) -> list[Task]:
    """Return the tasks of a run, clean ones first.

    Each preset's clean trials run through the eras, page sizes and dtypes in turn; so do
    the bugs, each in its own era.
    """
    tasks: list[Task] = []
    for shift, preset in enumerate(settings.presets):
        for place, era in enumerate(Era):
            page_size, dtype = SHAPES[(place + shift) % len(SHAPES)]
            trial = Trial(settings.runner, preset, dtype, settings.device, era, page_size)
            tasks += _both_sources(
                trial, settings.seed + len(tasks), settings.examples // CLEAN_SHARE
            )
    for place, bug in enumerate(settings.bugs):
        preset = settings.presets[place % len(settings.presets)]
        page_size, dtype = SHAPES[place % len(SHAPES)]
        trial = Trial(settings.runner, preset, dtype, settings.device, page_size=page_size)
        tasks += _both_sources(trial.with_bug(bug), settings.seed, settings.examples)
    return tasks


SHAPES = ((4, "float32"), (1, "bfloat16"), (1, "float32"))
"""Page sizes and dtypes that a run's trials take in turn."""


def _both_sources(trial: Trial, seed: int, examples: int) -> list[Task]:
    return [
        Task(trial, Source.GENERATED, seed, max(1, examples)),
        Task(trial, Source.TRAFFIC, seed, max(1, examples // TRAFFIC_SHARE)),
    ]


def execute(tasks: Sequence[Task], workers: int, on_result: Callable[[Result], None]) -> None:
    """Run tasks in `workers` processes, handing on each result as it comes.

    A process that died or lost its device is replaced before it is given another task.
    """
    waiting = list(reversed(tasks))
    with _processes(workers) as processes:
        busy: dict[Future[Result], tuple[int, Task]] = {}
        while waiting or busy:
            for place in set(range(workers)) - {place for place, _ in busy.values()}:
                if waiting:
                    task = waiting.pop()
                    with undisturbed():
                        busy[processes[place].submit(run_task, task)] = place, task
            done, _ = wait(busy, return_when=FIRST_COMPLETED)
            for each in done:
                place, task = busy.pop(each)
                error = each.exception()
                result = Result.of_failure(task, error) if error else each.result()
                if result.device_lost:
                    processes[place].shutdown()
                    processes[place] = pool(1)
                on_result(result)


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
    told = (
        f"clean: {len(clean_good)} of {len(clean)} trials green;"
        f" bugs: {len(good)} of {len(bugs)} hunts ended as the table says"
    )
    missing = unreached(run)
    if missing and not run.interrupted:
        told += f"; never reached: {', '.join(missing)}"
    if run.interrupted:
        return "interrupted", f"cut short; so far {told}"
    whole = len(good) == len(bugs) and len(clean_good) == len(clean) and not missing
    return ("green" if whole and clean else "red"), told


def unreached(run: Run) -> list[str]:
    """Return the required events that the clean trials, taken together, never reached."""
    events: Counter[str] = Counter()
    for result in run.results:
        if result.task.bug is None:
            events += result.catch.events
    return [event for event in REQUIRED_EVENTS if not events[event]]


def record(run: Run, cases: Path, shown: str) -> dict[str, Any]:
    """Return the run as JSON data, and write a case file into `cases` for every finding.

    `shown` is the folder of the cases as a reproduce command names it.
    """
    outcome, told = verdict(run)
    return {
        "command": run.settings.command,
        "seed": run.settings.seed,
        "examples": run.settings.examples,
        "started": run.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(time.monotonic() - run.clock, 1),
        "verdict": outcome,
        "told": told,
        "environment": environment(run.settings.device),
        "clean": [_clean_row(each, cases, shown) for each in ordered(run) if each.task.bug is None],
        "bugs": [
            _bug_row(each, cases, shown) for each in ordered(run) if each.task.bug is not None
        ],
        "contracts": [
            {
                "runner": runner,
                "era": str(era),
                "rows": [
                    {
                        "name": row.name,
                        "axis": str(row.axis),
                        "dtype": str(row.dtype).removeprefix("torch."),
                        "padding": row.padding,
                    }
                    for row in contract(runner, era)
                ],
            }
            for runner in CONTRACTS
            for era in Era
        ],
        "properties": PROPERTIES,
        "required_events": list(REQUIRED_EVENTS),
    }


def ordered(run: Run) -> list[Result]:
    """Return the results in the order of the plan, whatever order they came in."""
    place = {task: index for index, task in enumerate(plan(run.settings))}
    return sorted(run.results, key=lambda result: place[result.task])


def _counts(result: Result) -> dict[str, Any]:
    catch = result.catch
    return {
        "trial": result.task.trial.to_json(),
        "source": str(result.task.source),
        "status": str(result.status),
        "error": result.error,
        "schedules": catch.schedules,
        "steps": catch.steps,
        "replays": catch.replays,
        "padded_replays": catch.padded_replays,
        "seconds": round(result.seconds, 2),
        "events": dict(sorted(catch.events.items())),
        "capture_warnings": result.capture_warnings,
    }


def _clean_row(result: Result, cases: Path, shown: str) -> dict[str, Any]:
    return {
        **_counts(result),
        "properties": list(PROPERTIES),
        "finding": _finding(result, cases, shown),
    }


def _bug_row(result: Result, cases: Path, shown: str) -> dict[str, Any]:
    bug = result.task.bug
    assert bug is not None
    finding = result.finding
    seen = {each["property"] for each in finding.violations} if finding else set()
    return {
        **_counts(result),
        "bug": bug.name,
        "thread": bug.thread,
        "mechanism": bug.mechanism,
        "caught_by": bug.caught_by,
        "masked_by": bug.masked_by,
        "schedules_to_detection": result.catch.schedules if finding else None,
        "seen": [name for name in PROPERTIES if name in seen],
        "finding": _finding(result, cases, shown),
    }


def _finding(result: Result, cases: Path, shown: str) -> dict[str, Any] | None:
    finding = result.finding
    if finding is None:
        return None
    path = cases / f"{case_name(result.task)}.json"
    write_case(case_of(result.task, finding), path)
    return {
        "violations": list(finding.violations),
        "case_file": f"{cases.name}/{path.name}",
        "reproduce": f"paritybit replay {shown}/{path.name}",
        "schedule": to_json(finding.schedule),
        "timeline": list(finding.timeline),
    }


def case_name(task: Task) -> str:
    """Return the file name of a task's case, without its ending."""
    trial = task.trial
    parts = [trial.bug or "clean", trial.runner, trial.preset, str(trial.era), str(task.source)]
    return "-".join(parts if trial.bug is None else [parts[0], parts[1], parts[2], parts[4]])


def case_of(task: Task, finding: Finding) -> Case:
    """Return the case of a task's finding."""
    sought = task.bug.caught_by if task.bug is not None else None
    return Case(task.trial, finding.schedule, sought, task.seed, finding.violations)
