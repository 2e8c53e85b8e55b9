"""What a person sees on the terminal: progress while a run goes on, and the matrix at its end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from harness.tasks import GOOD, Result, Status


class Advance(Protocol):
    """Told of each result as it comes."""

    def __call__(self, result: Result) -> None:
        """Take note of one result."""
        ...


@contextmanager
def progress(console: Console, total: int) -> Iterator[Advance]:
    """Show a bar over `total` tasks, and a line for every task that did not end well."""
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        line = bar.add_task("starting", total=total)

        def advance(result: Result) -> None:
            bar.update(line, advance=1, description=f"{result.task.label}: {result.status}")
            if result.status not in GOOD:
                console.print(f"{result.task.label}: [bold red]{result.status}[/]")

        yield advance


def matrix(record: Mapping[str, Any]) -> Table:
    """Return the bug × property matrix of a run record.

    A cell holds ● where the property that must see the bug saw it, ○ where another
    saw it too, ✗ where it should have been seen and was not.
    """
    table = Table(title="bug × property on each shrunk schedule", caption=LEGEND)
    table.add_column("bug")
    table.add_column("schedules", justify="right")
    for name in record["properties"]:
        table.add_column(name.replace("_", "\n", 1), justify="center")
    table.add_column("verdict")
    for row in record["bugs"]:
        cells = [_cell(row, name) for name in record["properties"]]
        name = row["bug"] if row["source"] == "generated" else f"{row['bug']} (traffic)"
        style = "green" if Status(row["status"]) in GOOD else "bold red"
        table.add_row(
            name,
            str(row["schedules_to_detection"] or row["schedules"]),
            *cells,
            f"[{style}]{row['status']}[/]",
        )
    return table


LEGEND = "● must see it and does   ○ sees it too   ✗ must see it and does not"


def _cell(row: Mapping[str, Any], name: str) -> str:
    if name in row["seen"]:
        return "●" if name == row["caught_by"] else "○"
    return "✗" if name == row["caught_by"] else ""


def clean_table(record: Mapping[str, Any]) -> Table:
    """Return the clean trials of a run record."""
    table = Table(title="clean baseline, all properties")
    for name in ("preset", "era", "page", "dtype", "source"):
        table.add_column(name)
    for name in ("schedules", "steps", "replays", "padded"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in record["clean"]:
        trial = row["trial"]
        style = "green" if Status(row["status"]) in GOOD else "bold red"
        table.add_row(
            *(trial["preset"], trial["era"], str(trial["page_size"]), trial["dtype"]),
            row["source"],
            *(str(row[key]) for key in ("schedules", "steps", "replays", "padded_replays")),
            f"[{style}]{row['status']}[/]",
        )
    return table
