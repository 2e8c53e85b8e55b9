"""The regression corpus: a minimal case for each bug on each runner that it affects."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from paritybit.harness.campaigns.regress import RunConfig, plan, run_tasks
from paritybit.harness.campaigns.run_record import case_of
from paritybit.harness.campaigns.task import Result, Source, Status, Task
from paritybit.harness.lockstep.scale.shapes import one_size
from paritybit.harness.machine.workers import Workers
from paritybit.harness.records.case import write_case


def corpus_tasks(hunts: Sequence[tuple[str, str]]) -> list[Task]:
    """Return the hunts for the corpus, on a CPU with seed 0. Each must detect its bug."""
    return [
        replace(task, trial=one_size(task.trial))
        for task in plan(RunConfig("cpu", tuple(hunts)))
        if task.target is not None and task.source is Source.GENERATED
    ]


def corpus_name(task: Task) -> str:
    """Return the name of a task's case."""
    return f"{task.trial.bug}@{task.trial.runner}"


def make_corpus(
    tasks: Sequence[Task], folder: Path, workers: Workers, on_result: Callable[[Result], None]
) -> list[Result]:
    """Hunt, and write a case to `folder` per bug caught. Returns the results without a case."""
    without_case: list[Result] = []

    def keep(result: Result) -> None:
        on_result(result)
        if result.status is Status.CAUGHT and result.finding is not None:
            path = folder / f"{corpus_name(result.task)}.json"
            write_case(case_of(result.task, result.finding), path)
        else:
            without_case.append(result)

    run_tasks(tasks, workers, keep)
    return sorted(without_case, key=lambda result: corpus_name(result.task))
