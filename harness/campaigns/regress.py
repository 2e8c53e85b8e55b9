"""The main job: the clean build first, then every bug, and one record of it all."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

from harness.campaigns.executor import Campaign, execute
from harness.campaigns.task import (
    GOOD,
    Finding,
    Result,
    Source,
    Status,
    Task,
    result_of,
    run_in_turn,
)
from harness.checks.expectations import unaffected_reason
from harness.checks.table import PROPERTIES
from harness.lockstep.config import TrialConfig
from harness.records.case import Case, write_case
from harness.records.record import environment
from harness.schedules.coverage import required_events
from harness.schedules.schedule import to_json
from reference.config import PRESETS
from subjects.bugs.catalogue import BUGS
from subjects.bugs.switching import missing_inputs
from subjects.engine import contract
from subjects.runners import RUNNERS, engine_runners
from subjects.toggles import LocationScheme

CLEAN_SCHEDULES = 24
"""Generated clean schedules that the trials of a run share, each checked deeper than a hunt's."""

FEWEST_CLEAN = 4
"""Generated schedules of one clean trial at the least, however many trials there are."""

UNAFFECTED_SHARE = 16
"""A bug that cannot affect a runner is tried on this fraction of a hunt's schedules."""

TRAFFIC_SHARE = 12
"""Pieces of traffic that a trial plays, as the fraction of a hunt's schedules."""

SHAPES = ((4, "float32"), (1, "bfloat16"), (1, "float32"), (4, "bfloat16"))
"""Page sizes and dtypes that a run's trials take in turn."""

TASKS = Campaign(run_in_turn, shared=attrgetter("clean_trial"), seconds=attrgetter("seconds"))
"""How the tasks of a run are run: those of a trial share it with the clean build it is held to."""


def all_hunts(runners: Iterable[str] = tuple(RUNNERS)) -> tuple[tuple[str, str], ...]:
    """Return every (bug, runner) that can be switched on, whether the bug affects it or not."""
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

    @property
    def only_failures(self) -> bool:
        """Whether errors of ours kept the run from a verdict, and nothing was found beside them."""
        wrong = [result for result in self.results if result.status not in GOOD]
        return bool(wrong) and all(
            result.status is Status.FAILED and result.finding is None for result in wrong
        )


def plan(settings: RunConfig) -> list[Task]:
    """Return the tasks of a run, clean ones first.

    Each runner is tried clean with every location scheme, and each bug on the trial of its
    runner and scheme.
    """
    return clean_tasks(settings) + hunting_tasks(settings)


def clean_tasks(settings: RunConfig) -> list[Task]:
    """Return the clean trials: generated schedules on all, traffic on one of each runner."""
    schemes = list(LocationScheme)
    share = max(FEWEST_CLEAN, CLEAN_SCHEDULES // (len(settings.runners) * len(schemes)))
    tasks: list[Task] = []
    seed = settings.seed
    for place, runner in enumerate(settings.runners):
        for scheme in schemes:
            trial = trial_of(settings, runner, scheme)
            tasks.append(Task(trial, Source.GENERATED, seed, min(share, settings.examples)))
            if scheme is schemes[place % len(schemes)]:
                tasks.append(Task(trial, Source.TRAFFIC, seed, 1))
            seed += 1
    return tasks


def hunting_tasks(settings: RunConfig) -> list[Task]:
    """Return the hunts of a run, each of a bug on a runner."""
    tasks: list[Task] = []
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
    """Return the trial of a runner with a location scheme.

    Presets, page sizes and dtypes take turns.
    """
    turn = list(RUNNERS).index(runner) + list(LocationScheme).index(scheme)
    preset = settings.presets[turn % len(settings.presets)]
    page_size, dtype = SHAPES[turn % len(SHAPES)]
    return TrialConfig(runner, preset, dtype, settings.device, scheme, page_size)


def one_size(trial: TrialConfig) -> TrialConfig:
    """Return the trial with one captured size a runner, for a campaign of few schedules a trial.

    Most of its time is the capture, and every bug shows on one size.
    """
    return replace(trial, buckets=(4,), token_buckets=(12,))


def run_tasks(tasks: Sequence[Task], workers: int, on_result: Callable[[Result], None]) -> None:
    """Run tasks in `workers` processes, handing on each result as it comes."""
    execute(TASKS, tasks, workers, lambda ended: on_result(result_of(ended)))


def verdict(run: Run) -> tuple[str, str]:
    """Return green, red or interrupted, and one sentence that says why."""
    clean = [result for result in run.results if result.task.bug is None]
    bugs = [result for result in run.results if result.task.bug is not None]
    good = [result for result in bugs if result.status in GOOD]
    clean_good = [result for result in clean if result.status in GOOD]
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


def record(run: Run, cases: Path, shown: str) -> dict[str, Any]:
    """Return the run as JSON data, and write a case file into `cases` for every finding.

    `shown` is the folder of the cases as a reproduce command names it.
    """
    outcome, message = verdict(run)
    return {
        "command": run.settings.command,
        "seed": run.settings.seed,
        "examples": run.settings.examples,
        "started": run.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(time.monotonic() - run.clock, 1),
        "verdict": outcome,
        "message": message,
        "environment": environment(run.settings.device),
        "clean": [_clean_row(each, cases, shown) for each in ordered(run) if each.task.bug is None],
        "bugs": [
            _bug_row(each, cases, shown) for each in ordered(run) if each.task.bug is not None
        ],
        "pairs": [
            {
                "bug": name,
                "runner": runner,
                "unaffected": unaffected_reason(bug, runner),
                "can_be_switched_on": not missing_inputs(bug, runner),
            }
            for name, bug in BUGS.items()
            for runner in RUNNERS
        ],
        "engine_runners": {name: [each.name for each in engine_runners(name)] for name in RUNNERS},
        "contracts": [
            {
                "runner": name,
                "scheme": str(scheme),
                "rows": [
                    {
                        "name": row.name,
                        "axis": str(row.axis),
                        "dtype": str(row.dtype or "the model's").removeprefix("torch."),
                        "padding": row.padding,
                    }
                    for row in contract(runner, scheme)
                ],
            }
            for name, runner in RUNNERS.items()
            for scheme in LocationScheme
        ],
        "properties": PROPERTIES,
        "required_events": list(required_events(run.settings.runners)),
    }


def ordered(run: Run) -> list[Result]:
    """Return the results in the order of the plan, whatever order they came in."""
    place = {task: index for index, task in enumerate(plan(run.settings))}
    return sorted(run.results, key=lambda result: place[result.task])


def _counts(result: Result) -> dict[str, Any]:
    hunt_result = result.hunt_result
    return {
        "trial": result.task.trial.to_json(),
        "source": str(result.task.source),
        "status": str(result.status),
        "error": result.error,
        "schedules": hunt_result.schedules,
        "steps": hunt_result.steps,
        "replays": hunt_result.replays,
        "padded_replays": hunt_result.padded_replays,
        "seconds": round(result.seconds, 2),
        "events": dict(sorted(hunt_result.events.items())),
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
        "runner": result.task.trial.runner,
        "thread": bug.thread,
        "mechanism": bug.mechanism,
        "detected_by": result.task.target,
        "unaffected": result.task.unaffected,
        "schedules_to_detection": result.hunt_result.schedules if finding else None,
        "seen": [name for name in PROPERTIES if name in seen],
        "finding": _finding(result, cases, shown),
    }


def _finding(result: Result, cases: Path, shown: str) -> dict[str, Any] | None:
    finding = result.finding
    if finding is None:
        return None
    path = cases / f"{case_name(result.task)}.json"
    case = case_of(result.task, finding)
    write_case(case, path)
    return {
        "violations": list(finding.violations),
        "case_file": f"{cases.name}/{path.name}",
        "reproduce": f"paritybit replay {shown}/{path.name}",
        "schedule": to_json(finding.schedule),
        "timeline": list(finding.timeline),
        "explanation": finding.explanation,
        "case": {
            name: value
            for name, value in case.to_json().items()
            if name not in {"trial", "schedule", "violations"}  # They stand in the row.
        },
    }


def case_name(task: Task) -> str:
    """Return the file name of a task's case, without its ending."""
    trial = task.trial
    parts = [trial.bug or "clean", trial.runner, trial.preset, str(trial.scheme), str(task.source)]
    return "-".join(parts if trial.bug is None else [parts[0], parts[1], parts[2], parts[4]])


def case_of(task: Task, finding: Finding) -> Case:
    """Return the case of a task's finding."""
    return Case(task.trial, finding.schedule, task.target, task.seed, finding.violations)
