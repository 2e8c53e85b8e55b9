"""The workers of a command, from its options."""

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
    """Return the workers from the options of a command. Also creates the journal.

    Raises MalformedError for a cluster without --workers, and as `begun` does.
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
    """Return as many of the workers as fit into memory, each with the largest of the trials.

    Tiny trials, and workers on other machines, are not limited. Raises CannotRunError if not even
    one fits.
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
