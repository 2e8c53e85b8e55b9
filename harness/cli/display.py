"""Terminal output of `regress`: progress during the run, and errors at its end."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from paritybit.harness.campaigns.task import Result
from paritybit.harness.cli.exit_codes import CANNOT_RUN, OK
from paritybit.harness.errors import CannotRunError, headline, kept, refused
from paritybit.harness.records.schema import Status
from paritybit.reports.laboratory import runner_of
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


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
    runner = runner_of(result.finding, result.task.trial)
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
