"""Shows a report on a terminal: its tables, and the first causes of failures."""

from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase

from paritybit.reports.model import MOST_CAUSES, DataTable, Failure, Piece, ReplayCommand, Report
from rich.markup import escape
from rich.table import Table as Grid

NAMES = 9
"""The width of the name of a fact, including a space."""

STYLES = {"good": "green", "bad": "bold red", "warn": "yellow"}


def tables(report: Report) -> Iterator[Grid | str]:
    """Yield the tables that a terminal shows, each with its notes."""
    for section in report.sections:
        for block in section.blocks:
            if isinstance(block, DataTable) and block.printed and block.rows:
                yield from grid(block)


def grid(table: DataTable) -> Iterator[Grid | str]:
    """Yield a table and its notes. The inner columns of a matrix have letters."""
    made = Grid(box=None, padding=(0, 1, 0, 0))
    first, *others = table.head
    letters = dict(zip(others[:-1], ascii_uppercase, strict=False)) if table.matrix else {}
    made.add_column(first, overflow="fold")
    for name in others:
        letter = letters.get(name)
        made.add_column(letter or name, justify="center" if letter else "left")
    for row in table.rows:
        made.add_row(*map(styled, row))
    yield f"\n[bold]{escape(table.title)}[/]"
    yield made
    named = [f"{letter} {name}" for name, letter in letters.items()]
    yield from filter(None, (escape(", ".join(named)), escape(table.note)))


def styled(piece: Piece) -> str:
    """Return a cell with the style of its tone."""
    style, shown = STYLES.get(piece.tone), escape(piece.text)
    return f"[{style}]{shown}[/]" if style and shown else shown


def lines(report: Report, folder: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the first causes with what is known, and what is undecided, each with its style.

    `folder` is the folder of the run, as commands name it.
    """
    for number, cause in enumerate(report.causes[:MOST_CAUSES], 1):
        known = f" (known: {cause.known})" if cause.known else ""
        yield f"cause {number}: {cause.name}: {cause.count}{known}", STYLES["bad"]
        yield from ((f"  {line}", None) for line in cause_lines(cause, folder))
    if len(report.causes) > MOST_CAUSES:
        yield f"{len(report.causes) - MOST_CAUSES} more causes; the page has all", None
    if report.causes or len(report.undecided) > 1:
        yield from ((f"undecided: {reason}", None) for reason in report.undecided)
    for command in commands_of(report, "ci"):
        yield "to replay it in the engine's CI, copy its case to the engine's repository:", None
        yield f"  cp {folder}/cases/{command.file} .", None
        yield f"  {command.text()}", None


def commands_of(report: Report, anchor: str) -> Iterator[ReplayCommand]:
    """Yield the commands in a section of a report."""
    blocks = (block for one in report.sections if one.anchor == anchor for block in one.blocks)
    return (block for block in blocks if isinstance(block, ReplayCommand))


def cause_lines(cause: Failure, folder: Path) -> Iterator[str]:
    """Yield what is known of a cause, and the command that replays it."""
    yield from (f"{fact.name:{NAMES}}{fact.text}" for fact in cause.short)
    if cause.replay is not None:
        yield f"{'replay':{NAMES}}{cause.replay.text(f'{folder}/')}"
