"""Runs a campaign on this machine or a Ray cluster, except tasks whose end is in the journal."""

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
    """Run all tasks on this machine or a Ray cluster. `on_end` is called with each end.

    With a journal, the ends in it come first and their tasks do not run. New ends are saved in it
    before `on_end` is called. Raises as both backends do, and MalformedError for a journal of
    another build. If CannotRunError occurs after some tasks have ended, for example because the
    cluster was lost, all other tasks end with this error. An error of `on_end` is raised.
    """
    waiting = list(tasks)
    planned = len(waiting)
    of_caller: list[CannotRunError] = []

    def end(ended: Ended[T, R]) -> None:
        waiting.remove(ended.task)
        try:
            on_end(ended)
        except CannotRunError as error:
            of_caller.append(error)
            raise

    try:
        _carry_out(campaign, tuple(waiting), workers, end)
    except CannotRunError as error:
        if error in of_caller or len(waiting) == planned:
            raise
        for task in waiting:
            on_end(Ended(task, 0.0, error=traceback_of(error)))


def _carry_out(
    campaign: Campaign[T, R],
    tasks: Iterable[T],
    workers: Workers,
    on_end: Callable[[Ended[T, R]], None],
) -> None:
    """Run all tasks. With a journal, run those that it lacks, and save their ends in it."""
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
