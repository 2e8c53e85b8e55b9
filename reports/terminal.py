"""A comparison of two runs, or of two engines' trials, on the terminal."""

from collections.abc import Iterable, Iterator

from rich.markup import escape
from rich.table import Table

from reports.comparison import Comparison, Row
from reports.engine_comparison import Comparison as EngineComparison
from reports.engine_comparison import Row as EngineRow

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


def engine_lines(comparison: EngineComparison) -> Iterator[str]:
    """Yield the findings of two engines' trials, one line each, as the later one has them."""
    for change in comparison.changes:
        where = f"{change.violated} of {change.runner} {change.preset}"
        earlier = f"; before: {change.before}" if change.kind == "worse" else ""
        yield f"{change.kind:11} {where}: {change.after or change.before}{earlier}"


def engine_tables(comparison: EngineComparison) -> Iterator[Table]:
    """Yield what else differs between two engines' trials; no empty table."""
    everything = (
        _judged_rows("legs that ended otherwise", comparison.legs),
        _judged_rows("properties asked in one trial alone", comparison.asked),
        _judged_rows("verdicts on fault classes", comparison.faults),
        _judged_rows("figures", comparison.figures),
    )
    yield from (table for table in everything if table.row_count)


def _judged_rows(title: str, rows: Iterable[EngineRow]) -> Table:
    table = _table(title, "", "before", "after", "")
    for row in rows:
        table.add_row(*map(escape, (row.name, row.before, row.after, "worse" * row.worse)))
    return table


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
