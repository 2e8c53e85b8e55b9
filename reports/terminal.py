"""A comparison of two runs on the terminal."""

from collections.abc import Iterable, Iterator

from rich.markup import escape
from rich.table import Table

from reports.comparison import Comparison, Row

NEVER = "0"
"""How a coverage count of none is written."""


def tables(comparison: Comparison) -> Iterator[Table]:
    """Yield the findings that differ, then what else the runs do not share."""
    findings = _table("findings", "hunt", "", "differs in", "before", "after")
    for change in comparison.changes:
        cells = (change.name, change.kind, change.differs, change.before, change.after)
        findings.add_row(*map(escape, cells))
    yield findings
    lost = [row for row in comparison.coverage if NEVER in (row.before, row.after)]
    yield _rows("states that one run never reached", (row for row in lost if _differs(row)))
    yield _rows("environment", comparison.environment)
    yield _rows("speed", comparison.speed)


def _rows(title: str, rows: Iterable[Row]) -> Table:
    table = _table(title, "", "before", "after")
    for row in rows:
        table.add_row(*map(escape, (row.name, row.before, row.after)))
    return table


def _differs(row: Row) -> bool:
    return row.before != row.after


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_style="bold", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
