"""A comparison of two runs on the terminal."""

from collections.abc import Iterable, Iterator

from rich.markup import escape
from rich.table import Table

from reports.comparison import Comparison, Row

NEVER = "0"
"""How a coverage count of none is written."""


def tables(comparison: Comparison) -> Iterator[Table]:
    """Yield the findings that differ, then what else the runs do not share; no empty table."""
    findings = _table("findings", "", "hunt", "before", "after", "differs in")
    for change in comparison.changes:
        cells = (change.kind, change.name, change.before, change.after, change.differs)
        findings.add_row(*map(escape, cells))
    lost = [row for row in comparison.coverage if (row.before == NEVER) != (row.after == NEVER)]
    everything = (
        findings,
        _rows("reached in one run alone", lost),
        _rows("environment", comparison.environment),
        _rows("speed", comparison.speed),
    )
    yield from (table for table in everything if table.row_count)


def _rows(title: str, rows: Iterable[Row]) -> Table:
    table = _table(title, "", "before", "after")
    for row in rows:
        table.add_row(*map(escape, (row.name, row.before, row.after)))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_style="bold",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
