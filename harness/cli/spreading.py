"""Over which workers a command's tasks are spread, by its options."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from paritybit.harness.campaigns.spreading.journal import begun
from paritybit.harness.errors import MalformedError
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scale.memory import most_processes, needs_of
from paritybit.harness.machine.workers import LOCAL, Workers, workers_for
from paritybit.harness.records.schema import RunAgain
from paritybit.reference.config import Shape
from paritybit.reports.hitches import run_again


def workers_asked_for(options: argparse.Namespace, device: str) -> Workers:
    """Return the workers that the options of a command ask for.

    Begins the journal, before anything is printed or run. Raises MalformedError for a cluster of
    which nobody says how much is to be used, and as `begun` does.
    """
    if options.ray not in {None, LOCAL} and options.workers is None:
        raise MalformedError(
            f"--ray {options.ray} needs --workers, the number of processes to use in the cluster"
        )
    workers = workers_for(device, options.workers)
    if options.journal is not None:
        begun(options.journal)
    return replace(workers, cluster=options.ray, journal=options.journal)


def fitting(workers: Workers, trials: Sequence[TrialConfig]) -> Workers:
    """Return as many of some workers as the memory holds, each with the largest of some trials.

    Nothing is asked of tiny ones, nor of this machine for a cluster of others. Raises
    CannotRunError where it does not hold one.
    """
    largest = max(trials, key=lambda trial: sum(needs_of(trial).values()))
    if largest.shape == Shape.TINY or workers.cluster not in {None, LOCAL}:
        return workers
    fit = most_processes(largest)
    return workers if workers.processes <= fit else replace(workers, processes=fit)


def print_run_again(workers: Workers) -> None:
    """Print which tasks were run again, if any were."""
    if workers.again:
        print(f"tasks run again: {run_again([RunAgain(*told) for told in workers.again])}")
