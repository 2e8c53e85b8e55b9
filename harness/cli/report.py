"""The command `report`."""

from pathlib import Path

from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK
from paritybit.harness.cli.folders import LATEST
from paritybit.harness.errors import MalformedError
from paritybit.harness.records.codec import load
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.schema import Record
from paritybit.reports import laboratory, sanitizer
from paritybit.reports.markdown import summary
from paritybit.reports.model import Report
from paritybit.reports.page import render

from paritybit.launch.changes import NEW, NOT_CHECKED_AGAIN, NOT_CHECKED_BEFORE, changes
from paritybit.launch.record import of_journals
from paritybit.launch.schema import STAYS, WatchRecord
from paritybit.launch.words import plural

PAGE = "index.html"

RECORDS = "watch.json", "run.json"


def run_report(path: Path, later: Path | None, *, markdown: bool) -> int:
    """Write the page of a run, or print it in another form, or compare it with a later run."""
    if later is not None and markdown:
        raise MalformedError("report writes one thing at a time, not a later record and --markdown")
    path, later = latest(path), later and latest(later)
    record = load_run(path)
    if later is not None:
        return compare(require_watch(record, path), require_watch(load_run(later), later))
    if markdown:
        print(summary(report_of(record)), end="")
        return OK
    page = (path if path.is_dir() else path.parent) / PAGE
    write_whole(page, render(report_of(record)))
    verdict = "" if record.message.startswith(record.verdict) else f"{record.verdict}: "
    print(f"{verdict}{record.message}")
    print(page)
    return OK


def latest(path: Path) -> Path:
    """Return the folder of the last run for a folder of runs, and any other path as it is."""
    return path / LATEST if (path / LATEST).is_dir() else path


def load_run(path: Path) -> Record | WatchRecord:
    """Load a record, or the record or the journals in the folder of a run.

    Raises MalformedError as `load` does, and for a folder that has neither.
    """
    if not path.exists():
        raise MalformedError(f"{path} does not exist: name a run's folder, run.json or watch.json")
    if not path.is_dir():
        record = load(path, Record, WatchRecord)
        assert isinstance(record, Record | WatchRecord)
        return record
    for name in RECORDS:
        if (path / name).exists():
            return load_run(path / name)
    found = of_journals(path)
    if found is None:
        raise MalformedError(f"{path} has no record and no journal of a run")
    return found


def report_of(record: Record | WatchRecord) -> Report:
    """Return the report of a record of either half."""
    if isinstance(record, WatchRecord):
        return sanitizer.report_of(record)
    return laboratory.report_of(record)


def require_watch(record: Record | WatchRecord, path: Path) -> WatchRecord:
    """Return a record of `watch`. Raises MalformedError for one of `regress`."""
    if not isinstance(record, WatchRecord):
        raise MalformedError(f"{path} is a record of regress; this needs one of watch (watch.json)")
    return record


def compare(before: WatchRecord, after: WatchRecord) -> int:
    """Print what differs between two records of `watch`, and return the exit code."""
    every = changes(before, after)
    found = [change for change in every if change.kind != STAYS]
    for change in found:
        print(f"{change.kind}: {change.cause}: {change.before or change.after}")
    if not found:
        same = len(every)
        print(
            f"no difference: {plural(same, 'cause')} in both" if same else "no findings in either"
        )
    for reason in after.undecided:
        print(f"undecided in the later run: {reason}")
    kinds = {change.kind for change in found}
    if kinds & {NEW, NOT_CHECKED_BEFORE}:
        return FINDING
    return CANNOT_RUN if NOT_CHECKED_AGAIN in kinds or after.undecided else OK
