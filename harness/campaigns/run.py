"""A run of clean trials and hunts: its results, the verdict on them, and its record."""

import time
from dataclasses import dataclass, field
from datetime import datetime, timezone

from paritybit.harness.campaigns.plan import RunConfig, plan
from paritybit.harness.campaigns.task import OPEN, Task
from paritybit.harness.records.case import Case, file_name
from paritybit.harness.records.environment import environment
from paritybit.harness.records.schema import BugRow, Record, RunVerdict, TrialRow


@dataclass
class Run:
    """A run in progress.

    - `processes`: the number of worker processes.
    - `tasks`: the selected tasks in the order of the plan. At first, all of the plan.
    - `results`: in the order in which they arrived.
    - `broken`: whether pytest had an error of its own, so that results may be missing.
    """

    settings: RunConfig
    command: str = "paritybit regress"
    processes: int = 1
    tasks: list[Task] = field(default_factory=list)
    results: list[TrialRow] = field(default_factory=list)
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    clock: float = field(default_factory=time.monotonic)
    interrupted: bool = False
    broken: bool = False

    def __post_init__(self) -> None:
        self.tasks = self.tasks or plan(self.settings)

    @property
    def undecided(self) -> bool:
        """Whether no result is wrong. If the run is not green, results or verdicts are missing."""
        unexpected = [result for result in self.results if not result.status.expected]
        return all(result.status in OPEN and result.finding is None for result in unexpected)


def verdict(run: Run) -> tuple[RunVerdict, str]:
    """Return green, red or interrupted, and a sentence with the reason.

    A run is green if all selected tasks ended as expected.
    """
    clean = [result for result in run.results if not isinstance(result, BugRow)]
    bugs = [result for result in run.results if isinstance(result, BugRow)]
    good = [result for result in bugs if result.status.expected]
    clean_good = [result for result in clean if result.status.expected]
    message = (
        f"{len(clean_good)} of {len(clean)} clean trials passed;"
        f" {len(good)} of {len(bugs)} hunts ended as expected"
    )
    lost = len(run.tasks) - len(run.results)
    if lost and not run.interrupted:
        message += f"; {lost} of {len(run.tasks)} trials and hunts gave no result"
    if run.interrupted:
        rest = f"; {lost} of {len(run.tasks)} did not finish" if lost else ""
        return "interrupted", f"so far, {message}{rest}"
    if run.broken:
        message += "; pytest failed"
    good_all = len(good) == len(bugs) and len(clean_good) == len(clean)
    whole = good_all and run.results and not (lost or run.broken)
    return ("green" if whole else "red"), message


def record(run: Run) -> Record:
    """Return the record of a run."""
    outcome, message = verdict(run)
    place = {task.name: index for index, task in enumerate(run.tasks)}
    rows = sorted(run.results, key=lambda one: place[one.name])
    return Record(
        command=run.command,
        seed=run.settings.seed,
        examples=run.settings.examples,
        started=run.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=round(time.monotonic() - run.clock, 1),
        verdict=outcome,
        message=message,
        environment=environment(run.settings.device, run.processes),
        clean=tuple(one for one in rows if not isinstance(one, BugRow)),
        bugs=tuple(one for one in rows if isinstance(one, BugRow)),
    )


def cases_of(record: Record) -> dict[str, Case]:
    """Return the cases of all findings of a run, by file name."""
    found = [row.finding.case for row in (*record.clean, *record.bugs) if row.finding is not None]
    return {file_name(case): case for case in found}
