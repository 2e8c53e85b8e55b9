"""Makes the record of a `regress` run, and the case file of each finding."""

import shlex
import time
from typing import Any, cast

from paritybit.harness.campaigns.finding import Finding
from paritybit.harness.campaigns.regress import Run, plan, verdict
from paritybit.harness.campaigns.scope import scope
from paritybit.harness.campaigns.task import Result, Task
from paritybit.harness.checks.expectations import unaffected_reason
from paritybit.harness.checks.table import PROPERTIES, STATEMENTS
from paritybit.harness.records import schema
from paritybit.harness.records.case import Case
from paritybit.harness.records.record import environment
from paritybit.harness.records.typed_json import from_json, to_json
from paritybit.harness.schedules.buckets import SMALLEST
from paritybit.reference.config import CHAIN
from paritybit.subjects.bugs.catalogue import BUGS
from paritybit.subjects.bugs.switching import lacking
from paritybit.subjects.engine import contract
from paritybit.subjects.runners import RUNNERS, engine_runners
from paritybit.subjects.toggles import LocationScheme

CASES = "cases"
"""The folder of a run's case files, next to its record."""


def record(run: Run, shown: str) -> schema.Record:
    """Return the record of a run. `shown` is the folder of its cases for use in commands."""
    outcome, message = verdict(run)
    results = ordered(run)
    return schema.Record(
        command=run.settings.command,
        seed=run.settings.seed,
        examples=run.settings.examples,
        started=run.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(time.monotonic() - run.clock, 1),
        verdict=cast(schema.Verdict, outcome),
        message=message,
        environment=environment(run.settings.device, run.settings.workers),
        clean=tuple(_clean_row(r, shown) for r in results if r.task.bug is None),
        bugs=tuple(_bug_row(r, shown) for r in results if r.task.bug is not None),
        pairs=_pairs(),
        engine_runners={
            name: tuple(runner.name for runner in engine_runners(name)) for name in RUNNERS
        },
        uncompiled_runners=tuple(name for name, runner in RUNNERS.items() if not runner.captures),
        contracts=_contracts(),
        properties=dict(STATEMENTS),
        required_events=run.settings.required_events,
        scope=scope(run),
    )


def ordered(run: Run) -> list[Result]:
    """Return the results in the order of the plan."""
    place = {task: index for index, task in enumerate(plan(run.settings))}
    return sorted(run.results, key=lambda result: place[result.task])


def _pairs() -> tuple[schema.BugOnRunner, ...]:
    """Return all pairs of a bug and a runner."""
    return tuple(
        schema.BugOnRunner(
            bug=name,
            runner=runner,
            unaffected=unaffected_reason(bug, runner),
            can_be_switched_on=not lacking(bug, runner),
        )
        for name, bug in BUGS.items()
        for runner in RUNNERS
    )


def _contracts() -> tuple[schema.Contract, ...]:
    """Return the contract of each runner in each location scheme."""
    return tuple(
        schema.Contract(
            runner=name,
            scheme=str(scheme),
            rows=tuple(
                schema.ContractRow(
                    name=row.name,
                    axis=str(row.axis),
                    dtype=str(row.dtype or "the model's").removeprefix("torch."),
                    padding=row.padding,
                )
                for row in contract(runner, scheme)
            ),
        )
        for name, runner in RUNNERS.items()
        for scheme in LocationScheme
    )


def _counts(result: Result, shown: str) -> dict[str, Any]:
    """Return the fields of `schema.TrialRow` by name."""
    hunt_result = result.hunt_result
    trial = to_json(result.task.trial)
    return {
        "trial": from_json(schema.TrialSettings, trial, "the trial"),
        "source": "generated",
        "error": result.error,
        "schedules": hunt_result.schedules,
        "steps": hunt_result.steps,
        "replays": hunt_result.replays,
        "padded_replays": hunt_result.padded_replays,
        "seconds": round(result.seconds, 2),
        "events": dict(sorted(hunt_result.events.items())),
        "capture_warnings": result.capture_warnings,
        "finding": _finding(result, shown),
    }


def _clean_row(result: Result, shown: str) -> schema.CleanRow:
    return schema.CleanRow(
        **_counts(result, shown),
        status=cast(schema.CleanStatus, str(result.status)),
        properties=tuple(PROPERTIES),
    )


def _bug_row(result: Result, shown: str) -> schema.BugRow:
    bug = result.task.bug
    assert bug is not None
    finding = result.finding
    seen = {violation["property"] for violation in finding.violations} if finding else set()
    return schema.BugRow(
        **_counts(result, shown),
        status=cast(schema.HuntStatus, str(result.status)),
        bug=bug.name,
        runner=result.task.trial.runner,
        thread=bug.thread,
        mechanism=bug.mechanism,
        detected_by=result.task.target,
        unaffected=result.task.unaffected,
        schedules_to_detection=result.hunt_result.schedules if finding else None,
        seen=tuple(name for name in PROPERTIES if name in seen),
        reach=result.reach,
    )


def _finding(result: Result, shown: str) -> schema.Finding | None:
    finding = result.finding
    if finding is None:
        return None
    name = f"{case_name(result.task)}.json"
    data = case_of(result.task, finding).to_json()
    return schema.Finding(
        violations=tuple(
            from_json(schema.Violation, violation, "a violation")
            for violation in finding.violations
        ),
        case_file=f"{CASES}/{name}",
        reproduce=shlex.join(["paritybit", "replay", f"{shown}/{name}"]),
        schedule=from_json(schema.Schedule, data["schedule"], "the schedule"),
        timeline=finding.timeline,
        explanation=finding.explanation,
        error=finding.error,
        case=schema.CaseHead(data["format"], data["version"], data["target"], data["seed"]),
        history=tuple(
            from_json(schema.Schedule, schedule, "a schedule of the history")
            for schedule in data.get("history", ())
        ),
    )


def cases_of(run: Run) -> dict[str, Case]:
    """Return the cases of all findings of a run, by file name."""
    return {
        f"{case_name(result.task)}.json": case_of(result.task, result.finding)
        for result in ordered(run)
        if result.finding is not None
    }


def case_name(task: Task) -> str:
    """Return the file name of a task's case without its suffix."""
    trial = task.trial
    if trial.bug is not None:
        return f"{trial.bug}-{trial.runner}-{trial.preset}"
    kinds = {
        "overlap": trial.overlap,
        "smallest": trial.buckets == SMALLEST,
        "chains": trial.topk == CHAIN.topk,
    }
    parts = ["clean", trial.runner, trial.preset, str(trial.scheme)]
    return "-".join([*parts, *(kind for kind, is_it in kinds.items() if is_it)])


def case_of(task: Task, finding: Finding) -> Case:
    """Return the case of a task's finding."""
    return Case(
        trial=task.trial,
        schedule=finding.schedule,
        target=task.target,
        seed=task.seed,
        violations=finding.violations,
        history=finding.history,
    )
