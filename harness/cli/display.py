"""Terminal output of `regress`: progress during the run, and tables at its end."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from string import ascii_uppercase
from typing import Protocol

from paritybit.harness.campaigns.task import Result
from paritybit.harness.cli.exit_codes import CANNOT_RUN, OK
from paritybit.harness.errors import CannotRunError, headline, kept, refused
from paritybit.harness.records.schema import BugOnRunner, BugRow, Record, Row, Status
from paritybit.reports.blame import failing_runner
from paritybit.reports.verdicts import mark, pair_mark, that_can, to_detection, together
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


class Advance(Protocol):
    """Records results as they arrive."""

    def __call__(self, result: Result) -> None:
        """Record one result."""
        ...


@contextmanager
def progress(console: Console, total: int) -> Iterator[Advance]:
    """Show a bar over `total` tasks, and a line per detection and per unexpected result."""
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
            if result.status is Status.CAUGHT:
                console.print(detection_line(result), soft_wrap=True, highlight=False, markup=False)
            elif not result.status.expected:
                said = escape(said_of(result))
                console.print(f"{result.task.label}: [bold red]{result.status}[/] {said}")

        yield advance


def detection_line(result: Result) -> str:
    """Return which bug was detected by which property, after how many schedules and seconds."""
    count = result.hunt_result.schedules
    after = f"after {count} schedule{'s' * (count > 1)}" if count else "at capture"
    return f"{result.task.label}: {result.task.target} {after}, {result.seconds:.1f} s"


def said_of(result: Result) -> str:
    """Describe a result by its error, or by its first violation."""
    if result.error is not None:
        return headline(result.error)
    violations = result.finding.violations if result.finding is not None else ()
    if not violations:
        return ""
    assert result.finding is not None
    first, tried = violations[0], result.task.trial.runner
    runner = failing_runner(result.finding.explanation, result.finding.timeline, first.step)
    where = "" if runner == tried else f" in {runner}"
    return f"{first.property} at step {first.step}{where}: {first.message}"


LACKING = f"{CannotRunError.__module__}.{CannotRunError.__qualname__}: "
"""The beginning of a traceback's last line if something was missing, which is not a defect."""


def print_errors(errors: Iterable[str]) -> None:
    """Print to stderr in one sentence which errors left tasks without a verdict.

    If all are a CannotRunError, for example because another machine lacks something, the message
    of the first one is printed.
    """
    found = list(errors)
    lines = [headline(error) for error in found]
    if found and all(line.startswith(LACKING) for line in lines):
        refused(lines[0].removeprefix(LACKING), CANNOT_RUN)
    elif found:
        refused(kept(found), CANNOT_RUN)


def print_unexplained(results: Iterable[Result]) -> None:
    """Print to stderr how many results could not be explained, and the first error."""
    errors = [result.unexplained for result in results if result.unexplained is not None]
    if errors:
        count = f"{len(errors)} result{'s' * (len(errors) > 1)}"
        refused(f"{count} could not be explained, and the verdict stands: {kept(errors)}", OK)


def matrix(record: Record) -> Table:
    """Return the bug × property matrix of a run record, over all runners.

    The letters of the columns are explained below the table.
    """
    names = list(record.properties)
    count = f"{len(record.bugs)} hunts"
    table = _lettered(f"bug × property: {count}, each on its shrunk schedule", names, LEGEND)
    table.add_column("verdict", no_wrap=True)
    for bug, rows in _by_bug(record.bugs).items():
        table.add_row(
            _folded(bug),
            *(SIGNS[mark(that_can(rows), name)] for name in names),
            _verdict(rows),
        )
    return table


def runner_matrix(record: Record) -> Table:
    """Return the bug × runner matrix of a run record: schedules drawn until each was detected."""
    runners = list(dict.fromkeys(pair.runner for pair in record.pairs))
    table = _lettered("bug × runner", runners, RUNNER_LEGEND)
    hunted = _by_bug(record.bugs)
    for bug in dict.fromkeys(pair.bug for pair in record.pairs):
        if bug in hunted:
            cells = [
                _runner_cell(pair, [row for row in hunted[bug] if row.trial.runner == pair.runner])
                for pair in record.pairs
                if pair.bug == bug
            ]
            table.add_row(_folded(bug), *cells)
    return table


def _by_bug(rows: Iterable[BugRow]) -> dict[str, list[BugRow]]:
    """Return hunts by their bug, in the order of the record."""
    found: dict[str, list[BugRow]] = {}
    for row in rows:
        found.setdefault(row.bug, []).append(row)
    return found


def _runner_cell(pair: BugOnRunner, rows: Sequence[BugRow]) -> str:
    kind = pair_mark(pair, rows)
    return to_detection(rows) if kind == "caught" else RUNNER_SIGNS[kind]


SIGNS: Mapping[str, str] = {"caught": "●", "missed": "✗", "also": "○", "none": ""}
RUNNER_SIGNS: Mapping[str, str] = {
    "missed": "[bold red]✗[/]",
    "lacking": "–",
    "unasked": "",
    "also": "○",
}
"""The content of a cell by the result for a bug."""


def _lettered(title: str, names: Sequence[str], legend: str) -> Table:
    """Return a table with a lettered column per name. The names are listed below it."""
    table = _table(title)
    table.add_column("bug", overflow="fold", min_width=32)
    for letter in LETTERS[: len(names)]:
        table.add_column(letter, justify="center", no_wrap=True)
    lettered = [f"{letter} {name}" for letter, name in zip(LETTERS, names, strict=False)]
    table.caption = f"{', '.join(lettered)}\n{legend}"
    return table


def _folded(name: str) -> str:
    """Return the name of a bug, split over two lines if it is long."""
    if len(name) <= LONGEST_NAME:
        return name
    end = max(name.rfind(mark, 0, LONGEST_NAME) for mark in "+._") + 1
    return f"{name[:end]}\n  {_folded(name[end:])}" if end else name


def _table(title: str) -> Table:
    return Table(title=title, title_style="bold", box=None, padding=(0, 1, 0, 0), pad_edge=False)


LETTERS = ascii_uppercase
LONGEST_NAME = 32
HEADS = {"schedules": "sched-\nules", "replays": "re-\nplays", "padded_replays": "pad-\nded"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Short names that fit into 80 columns."""

OVERLAPS = " *"
LEGEND = (
    "● must detect the bug and does, on every runner; ○ detects it too; ✗ must detect it but "
    "does not"
)
RUNNER_LEGEND = (
    "schedules needed to detect the bug; ○ tested, cannot "
    "affect the runner; – cannot be switched on in this runner (the page and `paritybit "
    "list` say why); ✗ unexpected result; empty: not selected"
)


def _verdict(rows: Sequence[Row]) -> str:
    """Return the common verdict of trials or hunts."""
    status = together(rows)
    return f"[green]{status}[/]" if status.expected else f"[bold red]{status}[/]"


def clean_table(record: Record) -> Table:
    """Return the table of clean trials."""
    count = f"{len(record.clean)} clean trials, all properties checked"
    table = _table(count)
    for name in ("runner", "model", "scheme", "page", "dtype"):
        table.add_column(name, no_wrap=True, min_width=len(name))
    if any(row.trial.overlap for row in record.clean):
        table.caption = f"{OVERLAPS.strip()} with overlapping steps"
    counts = ("schedules", "steps", "replays", "padded_replays")
    for name in counts:
        table.add_column(HEADS.get(name, name), justify="right")
    table.add_column("verdict", no_wrap=True)
    for trial, group in groupby(record.clean, key=attrgetter("trial")):
        rows = list(group)
        table.add_row(
            *(trial.runner + OVERLAPS * trial.overlap, trial.preset, trial.scheme),
            *(str(trial.page_size), DTYPES.get(trial.dtype, trial.dtype)),
            *(str(sum(getattr(row, name) for row in rows)) for name in counts),
            _verdict(rows),
        )
    return table
