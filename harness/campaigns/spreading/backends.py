"""Running a campaign where it is to be run, without what a journal has of it already."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from paritybit.harness.campaigns import executor
from paritybit.harness.campaigns.executor import Campaign, Ended, Reported
from paritybit.harness.campaigns.spreading.journal import Journal
from paritybit.harness.campaigns.spreading.on_ray import execute_on_ray
from paritybit.harness.errors import CannotRunError
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.machine.workers import Workers

T = TypeVar("T")
R = TypeVar("R", bound=Reported)


def execute(
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    workers: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run every task on this machine or a Ray cluster, handing on each end as it comes.

    With a journal, ends that it has are handed on first and their tasks not run again; those
    that come are kept in it before they are handed on. Raises as both backends do, and
    MalformedError for a journal of another build. A CannotRunError that comes after some tasks
    have ended, as when the cluster is lost, is not raised: every other task ends with it.
    """
    waiting = list(tasks)
    planned = len(waiting)

    def end(ended: Ended[T, R]) -> None:
        waiting.remove(ended.task)
        on_end(ended)

    try:
        _carry_out(campaign, tuple(waiting), workers, end)
    except CannotRunError as error:
        if len(waiting) == planned:
            raise
        for task in waiting:
            on_end(Ended(task, 0.0, error=traceback_of(error)))


def _carry_out(
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    workers: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run every task; with a journal, only those that it lacks, and keep in it how they ended."""
    backend = executor.execute if workers.cluster is None else execute_on_ray
    if workers.journal is None:
        backend(campaign, tasks, workers, on_end)
        return
    journal: Journal[T, R] = Journal(workers.journal, campaign.run)
    missing = []
    for task in tasks:
        ended = journal.ended(task)
        if ended is None:
            missing.append(task)
        else:
            on_end(ended)

    def keep(ended: Ended[T, R]) -> None:
        journal.keep(ended)
        on_end(ended)

    backend(campaign, missing, workers, keep)
