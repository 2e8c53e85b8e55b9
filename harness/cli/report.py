"""The command `report`."""

from pathlib import Path

from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK
from paritybit.harness.cli.folders import OUT
from paritybit.harness.cli.watch.run import check_names
from paritybit.harness.errors import MalformedError
from paritybit.harness.records import record as run_record
from paritybit.harness.records.codec import load
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.schema import Record
from paritybit.reports.page import render
from paritybit.reports.summary import summarise
from paritybit.reports.watched.compare import compare_watched
from paritybit.reports.watched.issue import by_cause, issue_of, seen_in
from paritybit.reports.watched.page import render as render_watched
from paritybit.reports.watched.summary import summarise_watched

from paritybit.launch.case import WatchCase
from paritybit.launch.record import of_journals
from paritybit.launch.schema import Watched
from paritybit.launch.trend import NEW, NOT_CHECKED_AGAIN, NOT_CHECKED_BEFORE

PAGE = "index.html"
"""The page of a run, next to its record."""

RECORD = OUT / "latest" / "run.json"
"""The record of the last run of `regress`."""


def run_report(
    record: Path, later: Path | None, page: Path | None, *, markdown: bool, issue: bool
) -> int:
    """Write the page of a run, or print it in another form, or compare it with a later run."""
    forms = ("a later record",) * (later is not None)
    forms += ("--markdown",) * markdown + ("--issue",) * issue
    if len(forms) > 1:
        raise MalformedError(f"report writes one thing at a time, not {' and '.join(forms)}")
    if page is not None and forms:
        raise MalformedError(f"{forms[0]} prints text and writes no page")
    if later is not None:
        return compare(record, later)
    if markdown:
        return print_summary(record)
    if issue:
        return print_issues(record)
    if record.is_dir():
        return report_folder(record, page)
    return write_page(record, page or record.parent / PAGE)


def write_page(path: Path, page: Path) -> int:
    """Write the page of a record."""
    record = loaded(path)
    text = render_watched(record) if isinstance(record, Watched) else render(record)
    run_record.require_writable(page)
    write_whole(page, text)
    print(page)
    return OK


def print_issues(path: Path) -> int:
    """Print an issue in Markdown for each cause of findings that is not known."""
    record = load(path, Watched)
    files = sorted((path.parent / "cases").glob("*.json"))
    cases = {file.name: load(file, WatchCase) for file in files}
    found = by_cause(seen_in(record, cases))
    for issue in (issue_of(key, seen) for key, seen in found.items()):
        print(f"# {issue.title}\n\n{issue.body}")
    if not found:
        print("no findings")
    return OK


def report_folder(folder: Path, page: Path | None) -> int:
    """Write the page of a run of `watch` from its journals, and print the verdict.

    Raises MalformedError for a folder that has a record or no journals.
    """
    for name in (RECORD.name, "watch.json"):
        if (folder / name).exists():
            raise MalformedError(f"{folder} has a record: name the file {folder / name}")
    record = of_journals(folder, check_names())
    if record is None:
        raise MalformedError(f"{folder} has no record and no journal of a run")
    page = page or folder / PAGE
    run_record.require_writable(page)
    write_whole(page, render_watched(record))
    verdict = "" if record.message.startswith(record.verdict) else f"{record.verdict}: "
    print(f"{verdict}{record.message}")
    print(page)
    return OK


def loaded(path: Path) -> Record | Watched:
    """Load a record of either half. Raises as `load` does."""
    if path == RECORD and not path.exists():
        raise MalformedError(
            f"{path} does not exist: name the record of a run (run.json), or run "
            "paritybit regress first"
        )
    record = load(path, Record, Watched)
    assert isinstance(record, Record | Watched)
    return record


def compare(earlier: Path, later: Path) -> int:
    """Print the changes between two records of `watch`, and return the exit code."""
    before, after = load(earlier, Watched), load(later, Watched)
    changes = list(compare_watched(before, after))
    for change in changes:
        counts = " → ".join(filter(None, (change.before, change.after)))
        print(f"{change.kind}: {change.cause}: {counts}")
    if not changes:
        print("no findings in either")
    for reason in after.undecided:
        print(f"undecided in the later run: {reason}")
    kinds = {change.kind for change in changes}
    if kinds & {NEW, NOT_CHECKED_BEFORE}:
        return FINDING
    return CANNOT_RUN if NOT_CHECKED_AGAIN in kinds or after.undecided else OK


def print_summary(path: Path) -> int:
    """Print a record as Markdown."""
    record = loaded(path)
    text = summarise_watched(record) if isinstance(record, Watched) else summarise(record)
    print(text, end="")
    return OK
