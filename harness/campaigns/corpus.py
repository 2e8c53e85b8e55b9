"""The regression corpus: the minimal case of every bug on every runner that it can harm."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.campaigns.case import write_case
from harness.campaigns.regress import RunConfig, execute, plan
from harness.campaigns.run_record import case_of
from harness.campaigns.task import Result, Source, Status, Task

CORPUS = Path("properties/corpus")
BUCKETS, TOKEN_BUCKETS = (4,), (12,)
"""One captured size a runner: each bug shows on it, and most of a case's time is the capture."""


def corpus_tasks(hunts: Sequence[tuple[str, str]]) -> list[Task]:
    """Return the hunts whose cases the corpus keeps: of harmful bugs, on a CPU, with seed 0."""
    return [
        replace(task, trial=replace(task.trial, buckets=BUCKETS, token_buckets=TOKEN_BUCKETS))
        for task in plan(RunConfig("cpu", tuple(hunts)))
        if task.target is not None and task.source is Source.GENERATED
    ]


def corpus_name(task: Task) -> str:
    """Return the name of a task's case."""
    return f"{task.trial.bug}@{task.trial.runner}"


def make_corpus(
    tasks: Sequence[Task], folder: Path, workers: int, message: Callable[[Result], None]
) -> list[str]:
    """Hunt, and write a case for each catch into `folder`; return the names of those not caught."""
    missed: list[str] = []

    def keep(result: Result) -> None:
        message(result)
        name = corpus_name(result.task)
        if result.status is Status.CAUGHT and result.finding is not None:
            write_case(case_of(result.task, result.finding), folder / f"{name}.json")
        else:
            missed.append(name)

    execute(tasks, workers, keep)
    return sorted(missed)
