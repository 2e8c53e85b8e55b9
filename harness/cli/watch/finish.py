"""The end of a run of `watch`: its record, its cases, its page, the verdict and the exit code."""

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK, STOPPED
from paritybit.harness.cli.folders import for_record, swap_link
from paritybit.harness.errors import CannotRunError, report_error
from paritybit.harness.machine.stopping import heard_at_the_end
from paritybit.harness.records.files import write_whole
from paritybit.reports import terminal
from paritybit.reports.annotations import annotations, on_github
from paritybit.reports.junit import junit_of
from paritybit.reports.model import Report
from paritybit.reports.page import render
from paritybit.reports.sanitizer import report_of
from paritybit.reports.sarif import sarif_of

from paritybit.drive.adapters import adapter_of
from paritybit.launch import case as cases
from paritybit.launch import record as records
from paritybit.launch.schema import WatchRecord
from paritybit.launch.verdict import signal_name

if TYPE_CHECKING:
    from paritybit.harness.cli.watch.run import WatchRun

PAGE, RECORD, RESULTS, SUITE = "index.html", "watch.json", "findings.sarif", "junit.xml"

CODES: Mapping[str, int] = {"finding": FINDING, "no finding": OK, "undecided": CANNOT_RUN}


def finish(run: "WatchRun") -> int:
    """Write record, cases and page, show the verdict, and return the exit code."""
    options = run.options
    with heard_at_the_end():
        number = run.stops.received
        if number == signal.SIGTERM and options.engine is None:
            number = None  # The usual way to stop a server: the command is not interrupted.
        interrupted = None if number is None else signal_name(number)
        stated = replace(options, engine=options.engine and for_record(options.engine))
        given = interrupted, run.not_run, run.pairs, run.changes
        record = records.make(stated, run.outcomes, *given)
        found = cases.cases_of(record, run.outcomes, run.again)
        record = cases.with_cases(record, found)
        report = report_of(record)
        errors = list(write_all(run, record, found, report, prefix_of(options.engine)))
        if on_github():
            for line in annotations(report, prefix_of(options.engine)):
                run.display.put_plain(line)
        # The page names no folder outside of the current one. A command here must.
        show(run, record, report_of(structs.replace(record, engine=options.engine)))
        tolerated = record.verdict == "undecided" and options.warn
        if tolerated:
            run.display.put("without a verdict, this run does not fail: --undecided warn")
    code = OK if tolerated else CODES[record.verdict]
    if record.verdict != "finding" and number is not None:
        code = STOPPED[number]
    return report_error(errors[0], code or CANNOT_RUN) if errors else code


def write_all(
    run: "WatchRun",
    record: WatchRecord,
    found: Mapping[str, cases.WatchCase],
    report: Report,
    prefix: str,
) -> Iterator[CannotRunError]:
    """Write all files of a run, and yield the errors of those that cannot be written."""
    folder, page = run.folder, render(report)
    sarif, suite = sarif_of(record, prefix), junit_of(record, prefix)
    writes: list[Callable[[], None]] = [
        lambda: records.write(record, folder / RECORD),
        lambda: write_whole(folder / PAGE, page),
        *(partial(records.write, case, folder / "cases" / name) for name, case in found.items()),
        lambda: records.write(sarif, folder / RESULTS),
        lambda: write_whole(folder / SUITE, suite),
        lambda: swap_link(folder),
    ]
    for write in writes:
        try:
            write()
        except CannotRunError as error:
            yield error


def show(run: "WatchRun", record: WatchRecord, report: Report) -> None:
    """Print the first causes, the page and the verdict."""
    for line, style in terminal.lines(report, run.folder):
        run.display.put(line, style)
    run.display.put(f"page: {run.folder / PAGE}")
    verdict = "" if record.message.startswith(record.verdict) else f"{record.verdict}: "
    run.display.put(f"{verdict}{record.message}", style="bold")


def prefix_of(engine: str | None) -> str:
    """Return the path from the root of a source tree to its package, or '' for a release."""
    if engine is None:
        return ""
    package = adapter_of(engine).package
    home = package.folder_in(Path(engine))
    inside = "." if home is None else home.parent.relative_to(engine).as_posix()
    return "" if inside == "." else f"{inside}/"
