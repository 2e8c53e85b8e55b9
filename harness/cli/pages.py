"""Pages and summaries of run records."""

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from harness.cli.exit_codes import FINDING, OK
from harness.engines import record as engine_record
from harness.engines.record import is_trial
from harness.errors import MalformedError
from harness.records import record as run_record
from harness.records.case import read_json
from harness.records.files import write_whole
from reports import engine_page
from reports.comparison import compare_runs
from reports.engine_comparison import compare_trials
from reports.page import render, render_comparison
from reports.summary import summarise
from reports.terminal import engine_lines, engine_tables, tables


def run_report(options: argparse.Namespace) -> int:
    """Make the page of a run record."""
    page = options.page or options.record.parent / "index.html"
    data = run_record.load(options.record)
    run_record.require_writable(page)
    write_whole(page, render(data))
    print(page)
    return OK


def run_compare(options: argparse.Namespace) -> int:
    """Show two records side by side, on the terminal and as a page: of runs, or of engines."""
    pair = [(read_json(path), path.name) for path in (options.before, options.after)]
    of_engines = [is_trial(data) for data, _ in pair]
    if all(of_engines):
        return compare_engines(pair, options)
    if any(of_engines):
        raise MalformedError(
            f"of {options.before.name} and {options.after.name} one is the record of an engine's"
            " trial, and the other is none: compare two of one kind"
        )
    before, after = (run_record.record_of(data, name) for data, name in pair)
    comparison = compare_runs(before, after)
    text = render_comparison(before, after, comparison)
    run_record.require_writable(options.page)
    console = Console()
    console.print(*tables(comparison), comparison.message, sep="\n")
    write_whole(options.page, text)
    console.print(f"page: {options.page}")
    return FINDING if comparison.alarming else OK


def compare_engines(pair: Sequence[tuple[Any, str]], options: argparse.Namespace) -> int:
    """Show the records of two engines' trials side by side."""
    before, after = (engine_record.trial_of(data, name) for data, name in pair)
    try:
        comparison = compare_trials(before, after)
        text = engine_page.render_comparison(before, after, comparison)
    except (LookupError, TypeError, AttributeError) as error:
        files = f"{options.before.name} and {options.after.name}"
        raise MalformedError(f"{files} are not both whole records of trials: {error!r}") from error
    run_record.require_writable(options.page)
    console = Console()
    console.print(*engine_tables(comparison), sep="\n")
    for line in (*engine_lines(comparison), comparison.message):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    write_whole(options.page, text)
    console.print(f"page: {options.page}", highlight=False, markup=False, soft_wrap=True)
    return FINDING if comparison.alarming else OK


def run_summary(options: argparse.Namespace) -> int:
    """Print a run record as Markdown."""
    data = run_record.load(options.record)
    print(summarise(data), end="")
    return OK
