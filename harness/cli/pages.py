"""Pages and summaries of run records."""

import argparse
from pathlib import Path

from rich.console import Console

from harness.cli.exit_codes import FINDING, OK
from harness.records import record as run_record
from reports.comparison import compare_runs
from reports.page import render, render_comparison
from reports.page import write as write_page
from reports.summary import summarise
from reports.terminal import tables


def run_report(options: argparse.Namespace) -> int:
    """Make the page of a run record."""
    page = options.page or options.record.parent / "index.html"
    data = run_record.load(options.record)
    put(render(data), page)
    print(page)
    return OK


def run_compare(options: argparse.Namespace) -> int:
    """Show two run records side by side, on the terminal and as a page."""
    before, after = run_record.load(options.before), run_record.load(options.after)
    comparison = compare_runs(before, after)
    text = render_comparison(before, after, comparison)
    run_record.require_writable(options.page)
    put(text, options.page)
    Console().print(*tables(comparison), comparison.message, f"page: {options.page}", sep="\n")
    return FINDING if comparison.alarming else OK


def run_summary(options: argparse.Namespace) -> int:
    """Print a run record as Markdown."""
    data = run_record.load(options.record)
    print(summarise(data), end="")
    return OK


def put(text: str, page: Path) -> None:
    """Write a page. Raises ValueError where it cannot be written."""
    try:
        write_page(text, page)
    except OSError as error:
        raise ValueError(f"page {page} cannot be written: {error.strerror}") from error
