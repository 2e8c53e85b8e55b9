"""The command `report`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, OK
from paritybit.harness.cli.folders import OUT, earlier_records, shown
from paritybit.harness.cli.watch.run import check_names
from paritybit.harness.errors import MalformedError, cut
from paritybit.harness.records import record as run_record
from paritybit.harness.records.case import read_json
from paritybit.harness.records.files import write_whole
from paritybit.harness.records.schema import FORMAT as RUN
from paritybit.harness.records.schema import Record
from paritybit.reports.compared.previous import Previous
from paritybit.reports.compared.runs import Comparison, compare_runs
from paritybit.reports.compared.terminal import change_lines, tables
from paritybit.reports.compared.watched import compare_watched
from paritybit.reports.page import render, render_comparison
from paritybit.reports.summary import summarise
from paritybit.reports.watched.issue import by_cause, issue_of, seen_in
from paritybit.reports.watched.page import render as render_watched
from paritybit.reports.watched.summary import summarise_watched
from rich.console import Console
from rich.table import Table

from paritybit.launch import reading
from paritybit.launch.record import of_journals
from paritybit.launch.schema import Watched
from paritybit.launch.trend import NEW, NOT_CHECKED_AGAIN, NOT_CHECKED_BEFORE

PAGE = "index.html"
"""The page of a run, next to its record."""

RECORD = OUT / "latest" / "run.json"
"""The record of the last run of `regress`."""

COMPARED = OUT / "compare.html"
"""The page of a comparison."""


def run_report(
    record: Path, later: Path | None, page: Path | None, *, markdown: bool, issue: bool
) -> int:
    """Write the page of a run, or print it in another form, or compare it with a later run."""
    forms = ("a later record",) * (later is not None)
    forms += ("--markdown",) * markdown + ("--issue",) * issue
    if len(forms) > 1:
        raise MalformedError(f"report writes one thing at a time, not {' and '.join(forms)}")
    if page is not None and (markdown or issue):
        raise MalformedError(f"{forms[0]} prints text and writes no page")
    if later is not None:
        return compare(record, later, page or COMPARED)
    if markdown:
        return print_summary(record)
    if issue:
        return print_issues(record)
    if record.is_dir():
        return report_folder(record, page)
    return write_page(record, page or record.parent / PAGE)


def write_page(record: Path, page: Path) -> int:
    """Write the page of a record."""
    found = json_asked_for(record)
    if reading.is_record(found):
        text = render_watched(reading.record_of(found, record.name))
    else:
        data = run_record.record_of(found, record.name)
        beside = page.resolve().parent == record.resolve().parent
        text = render(data, previous_of(record, data) if beside else None)
    run_record.require_writable(page)
    write_whole(page, text)
    print(page)
    return OK


def print_issues(path: Path) -> int:
    """Print an issue in Markdown for each cause of findings that is not known."""
    data = json_asked_for(path)
    if not reading.is_record(data):
        raise MalformedError(f"--issue needs a record of watch (watch.json), not {path.name}")
    cases = {one.name: read_json(one) for one in sorted((path.parent / "cases").glob("*.json"))}
    found = by_cause(seen_in(reading.record_of(data, path.name), cases))
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


def json_asked_for(path: Path) -> Any:
    """Return the JSON data of a record. Raises MalformedError if there is none."""
    if path == RECORD and not path.exists():
        raise MalformedError(
            f"{path} does not exist: name the record of a run (run.json), or run "
            "paritybit regress first"
        )
    return read_json(path)


def compare(earlier: Path, later: Path, page: Path) -> int:
    """Compare two records of `regress`, also as a page, or two of `watch`."""
    pair = [(read_json(path), str(path)) for path in (earlier, later)]
    of_engines = [reading.is_record(data) for data, _ in pair]
    if all(of_engines):
        return compare_engines(*(reading.record_of(data, name) for data, name in pair))
    if any(of_engines):
        names = " with ".join(name for _, name in pair)
        raise MalformedError(f"cannot compare {names}: only one of them is from an engine")
    for data, name in pair:
        require_comparable(data, name)
    before, after = (run_record.record_of(data, name) for data, name in pair)
    comparison = compare_runs(before, after)
    text = render_comparison(before, after, comparison)
    run_record.require_writable(page)
    return show_comparison(comparison, list(tables(comparison)), text, page)


def require_comparable(data: Any, name: str) -> None:
    """Raise MalformedError for other kinds of paritybit files."""
    kind = data.get("format") if isinstance(data, dict) else None
    ours = isinstance(kind, str) and kind.startswith("paritybit-")
    if ours and kind != RUN:
        raise MalformedError(
            f"{name} is a {cut(str(kind))} file; a comparison needs two records of regress "
            "(run.json) or two of watch (watch.json)"
        )


def compare_engines(before: Watched, after: Watched) -> int:
    """Print the changes between two records of `watch`, and return the exit code."""
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


def show_comparison(comparison: Comparison, tables: Sequence[Table], text: str, page: Path) -> int:
    """Print a comparison, and write its page.

    Returns 1 if anything is new or worse, 125 if the later run has no verdict where the earlier
    one had one, else 0.
    """
    console = Console()
    console.print(*tables, sep="\n")
    for line in change_lines(comparison):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    write_whole(page, text)
    console.print(f"page: {page}", highlight=False, markup=False, soft_wrap=True)
    if comparison.alarming:
        return FINDING
    return CANNOT_RUN if comparison.unsettled else OK


def print_summary(path: Path) -> int:
    """Print a record as Markdown."""
    data, name = json_asked_for(path), path.name
    if reading.is_record(data):
        print(summarise_watched(reading.record_of(data, name)), end="")
    else:
        print(summarise(run_record.record_of(data, name)), end="")
    return OK


def previous_of(path: Path, record: Record) -> Previous | None:
    """Return the run before the one whose record is or will be at `path`, if there is one.

    If its record cannot be read, for example because it is too old, the result says so.
    """
    path = path.resolve()
    earlier = next(iter(earlier_records(path)), None)
    if earlier is None:
        return None
    words = ["paritybit", "report", shown(str(earlier), keep=3), shown(str(path), keep=3)]
    page = f"../{earlier.parent.name}/{PAGE}" if (earlier.parent / PAGE).exists() else ""
    name, command = earlier.parent.name, shlex.join(words)
    try:
        before = run_record.record_of(read_json(earlier), earlier.name)
        return Previous(name, page, command, compare_runs(before, record))
    except (MalformedError, LookupError, TypeError, AttributeError, ValueError) as error:
        why = str(error) if isinstance(error, MalformedError) else "its record is incomplete"
        return Previous(name, page, command, None, why)


def print_previous(console: Console, previous: Previous | None) -> None:
    """Print in one line what differs from the previous run, if there is one."""
    if previous is not None:
        compared = previous.comparison
        run = f"{previous.name} ({compared.names[0]})" if compared is not None else previous.name
        console.print(
            f"compared with the previous run, {run}: {previous.sentence}",
            highlight=False,
            markup=False,
        )
