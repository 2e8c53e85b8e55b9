"""The end of a run of `watch`: its record, its cases, its page, the verdict and the exit code."""

import argparse
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from paritybit.harness.cli.exit_codes import (
    CANNOT_RUN,
    FINDING,
    HUNG_UP,
    INTERRUPTED,
    OK,
    TERMINATED,
)
from paritybit.harness.cli.folders import shown, swap_link
from paritybit.harness.cli.watch.run import SIGNALS, Run, check_names
from paritybit.harness.machine.stopping import heard_at_the_end
from paritybit.harness.records.files import write_whole
from paritybit.reports.watched.page import render

from paritybit.drive.engines import driven
from paritybit.engines.loading import folder_of_package
from paritybit.launch import case as cases
from paritybit.launch import record as records
from paritybit.launch.sarif import sarif_of
from paritybit.launch.schema import Watched
from paritybit.launch.verdict import Outcome
from paritybit.launch.words import causes_of

RECORD, PAGE, RESULTS = "watch.json", "index.html", "findings.sarif"

CODES: Mapping[str, int] = {"finding": FINDING, "no finding": OK, "undecided": CANNOT_RUN}
"""Exit codes by verdict."""

STOPPED: Mapping[int, int] = {
    signal.SIGINT: INTERRUPTED,
    signal.SIGTERM: TERMINATED,
    signal.SIGHUP: HUNG_UP,
}
"""Exit codes of a run without a finding that a signal ended before its time."""


def finish(run: Run, options: argparse.Namespace) -> int:
    """Write record, cases and page, show the verdict, and return the exit code."""
    with heard_at_the_end():
        number = interruption(run, options)
        record = made(run, options, None if number is None else SIGNALS[number])
        record, found = with_cases(record, run.outcomes)
        for name, case in found.items():
            cases.write(case, run.folder / "cases" / name)
        records.write(record, run.folder / RECORD)
        write_whole(run.folder / PAGE, render(record))
        records.write_data(sarif_of(record, prefix_of(options.engine)), run.folder / RESULTS)
        swap_link(run.folder)
        show(run, record, options.engine)
    if record.verdict != "finding" and number is not None:
        return STOPPED[number]
    return CODES[record.verdict]


def prefix_of(engine: str | None) -> str:
    """Return what leads from the root of a source tree to its package; nothing for a release."""
    if engine is None:
        return ""
    asked = driven(engine).package
    package = folder_of_package(Path(engine), asked.name, asked.marker)
    inside = "." if package is None else package.parent.relative_to(engine).as_posix()
    return "" if inside == "." else f"{inside}/"


def interruption(run: Run, options: argparse.Namespace) -> int | None:
    """Return the signal that ended a run before its time, None for one that ended as it should.

    SIGTERM is how a server is stopped: a command that was watched until then has a verdict.
    """
    number = run.stops.received
    return None if number == signal.SIGTERM and options.engine is None else number


def made(run: Run, options: argparse.Namespace, interrupted: str | None) -> Watched:
    """Return the record of a run."""
    engine = options.engine
    asked = records.Asked(
        command=shlex.join(["paritybit", *map(shown, options.typed)]),
        every=options.every,
        checks=run.checks,
        known_checks=check_names() if run.checks is not None else (),
        engine=None if engine is None else shown(engine),
        model=options.model if engine is not None else None,
        device=options.device if engine is not None else None,
        seed=(options.seed or 0) if engine is not None else None,
        known=run.known,
        not_run=run.not_run,
    )
    return records.make(asked, run.outcomes, interrupted)


def with_cases(
    record: Watched, outcomes: Sequence[Outcome]
) -> tuple[Watched, dict[str, cases.WatchCase]]:
    """Return a record whose findings name their cases, and these by file name."""
    found = cases.cases_of(record, outcomes)
    return cases.named(record, found), found


def show(run: Run, record: Watched, engine: str | None) -> None:
    """Print each cause with its first finding, then the verdict in one line."""
    display = run.display
    for cause in causes_of(record.findings):
        first = cause.findings[0]
        display.put(f"cause: {cause.name}: {cause.count}")
        display.put_finding(first, replay_of(run.folder, first.case, engine))
    if record.verdict == "finding":
        for reason in record.undecided:
            display.put(f"undecided: {reason}")
    for name in record.absent:
        display.put(f"known, but did not occur: {name}")
    display.put(f"page: {run.folder / PAGE}")
    verdict = "" if record.message.startswith(record.verdict) else f"{record.verdict}: "
    display.put(f"{verdict}{record.message}", style="bold")


def replay_of(folder: Path, case: str | None, engine: str | None) -> str | None:
    """Return the command that replays a case, None where there is none."""
    if case is None or engine is None:
        return None
    return shlex.join(["paritybit", "replay", str(folder / "cases" / case), "--engine", engine])
