"""Prints a comparison of two runs on the terminal."""

from collections.abc import Iterable, Iterator

from paritybit.reports.compared.figures import Figure
from paritybit.reports.compared.kinds import ALARMING, KINDS, LOST
from paritybit.reports.compared.runs import Comparison
from rich.markup import escape
from rich.table import Table

NEVER = "0"
"""The text for a coverage count of zero."""

MOST = 8
"""The number of printed changes per kind, alarms excepted. The page has all."""


def change_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the changes, the most severe first, and the result."""
    before, after = comparison.names
    yield f"before: {before}"
    yield f"after:  {after}"
    for kind, meaning in KINDS.items():
        changes = [change for change in comparison.changes if change.kind == kind]
        shown = changes if kind in ALARMING | LOST else changes[:MOST]
        if changes:
            yield f"{kind} ({meaning}):"
        for change in shown:
            yield f"  {change.name}"
            if change.before != change.after:
                yield f"    before: {change.before or 'nothing'}"
            yield f"    after:  {change.after or 'nothing'}"
            if change.differs:
                yield f"    difference: {change.differs}"
        if len(shown) < len(changes):
            yield f"  and {len(changes) - len(shown)} more: see the page"
    for title, names in comparison.alone.items():
        if names:
            yield f"{title}:"
            yield from (f"  {name}" for name in names[:MOST])
        if len(names) > MOST:
            yield f"  and {len(names) - MOST} more: see the page"
    yield f"{comparison.verdict}: {comparison.message}"


def tables(comparison: Comparison) -> Iterator[Table]:
    """Yield tables of other differences between the runs. Empty tables are left out."""
    lost = [row for row in comparison.coverage if (row.before == NEVER) != (row.after == NEVER)]
    everything = (
        _rows("reached in only one run", lost),
        _rows("environment", comparison.environment),
        _rows("speed", comparison.speed),
    )
    yield from (table for table in everything if table.row_count)


def _rows(title: str, rows: Iterable[Figure]) -> Table:
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
