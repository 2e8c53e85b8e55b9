"""The command `corpus`."""

import argparse

from paritybit.harness.campaigns.corpus import corpus_name, corpus_tasks, make_corpus
from paritybit.harness.campaigns.task import Status
from paritybit.harness.cli.display import print_errors, progress
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK
from paritybit.harness.cli.regress import hunts_of
from paritybit.harness.errors import MalformedError
from paritybit.harness.machine.workers import workers_for
from paritybit.subjects.bugs.catalogue import FIRST
from rich.console import Console


def run_corpus(options: argparse.Namespace) -> int:
    """Regenerate the regression corpus."""
    tasks = corpus_tasks(hunts_of(options.bug or FIRST, ()))
    if not tasks:
        raise MalformedError(
            f"the bugs {', '.join(options.bug)} cannot affect the runners that were named"
        )
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MalformedError(f"cannot create folder {options.out}: {error.strerror}") from error
    workers = workers_for("cpu", options.workers).at_most(len(tasks))
    console = Console()
    with progress(console, len(tasks)) as advance:
        missed = make_corpus(tasks, options.out, workers, advance)
    console.print(f"wrote {len(tasks) - len(missed)} cases to {options.out}", soft_wrap=True)
    if not missed:
        return OK
    names = ", ".join(corpus_name(result.task) for result in missed)
    console.print(f"[bold red]not detected[/]: {names}", soft_wrap=True)
    print_errors(result.error for result in missed if result.error is not None)
    only_failed = all(result.status is Status.FAILED for result in missed)
    return CANNOT_RUN if only_failed else FINDING
