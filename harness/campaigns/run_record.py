"""Makes the record of a `regress` run."""

import time
from typing import Any, cast

from paritybit.harness.campaigns.run import Run, verdict
from paritybit.harness.campaigns.task import TaskResult
from paritybit.harness.records import schema
from paritybit.harness.records.case import Case, file_name
from paritybit.harness.records.environment import environment

CASES = "cases"
"""The folder of a run's case files, next to its record."""


def record(run: Run) -> schema.Record:
    """Return the record of a run."""
    outcome, message = verdict(run)
    place = {task: index for index, task in enumerate(run.tasks)}
    rows = [row(result) for result in sorted(run.results, key=lambda one: place[one.task])]
    return schema.Record(
        command=run.command,
        seed=run.settings.seed,
        examples=run.settings.examples,
        started=run.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(time.monotonic() - run.clock, 1),
        verdict=cast(schema.RunVerdict, outcome),
        message=message,
        environment=environment(run.settings.device, run.processes),
        clean=tuple(one for one in rows if not isinstance(one, schema.BugRow)),
        bugs=tuple(one for one in rows if isinstance(one, schema.BugRow)),
    )


def row(result: TaskResult) -> schema.TrialRow:
    """Return the row of a clean trial or a hunt."""
    search_result, bug = result.search_result, result.task.bug
    counts: dict[str, Any] = {
        "trial": result.task.trial,
        "status": result.status,
        "error": result.error,
        "schedules": search_result.schedules,
        "steps": search_result.steps,
        "replays": search_result.replays,
        "padded_replays": search_result.padded_replays,
        "seconds": round(result.seconds, 2),
        "finding": result.finding,
    }
    if bug is None:
        return schema.TrialRow(**counts)
    return schema.BugRow(
        **counts,
        bug=bug.name,
        thread=bug.thread,
        mechanism=bug.mechanism,
        detected_by=result.task.target,
        unaffected=result.task.unaffected,
        drawn=search_result.schedules if result.finding else None,
    )


def cases_of(record: schema.Record) -> dict[str, Case]:
    """Return the cases of all findings of a run, by file name."""
    found = [row.finding.case for row in (*record.clean, *record.bugs) if row.finding is not None]
    return {file_name(case): case for case in found}
