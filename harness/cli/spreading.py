"""Over which workers a command's tasks are spread, by its options."""

import argparse
from dataclasses import replace

from harness.errors import MalformedError
from harness.machine.workers import LOCAL, Workers, workers_for


def workers_asked_for(options: argparse.Namespace, device: str) -> Workers:
    """Return the workers that the options of a command ask for.

    Raises MalformedError for a cluster of which nobody says how much is to be used.
    """
    if options.ray not in {None, LOCAL} and options.workers is None:
        raise MalformedError(
            f"--ray {options.ray} needs --workers: how many processes of the cluster to use"
        )
    workers = workers_for(device, options.workers)
    return replace(workers, cluster=options.ray, journal=options.journal)


def require_this_machine(options: argparse.Namespace) -> None:
    """Raise MalformedError where an engine on trial is to be spread over a cluster."""
    given = [name for name in ("ray", "journal", "database") if getattr(options, name, None)]
    if given:
        raise MalformedError(f"--{given[0]} is of our own bugs: an engine is tried on this machine")
