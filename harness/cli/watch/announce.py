"""Prints the end of a `watch` run: a block per cause, then the page and the verdict.

In GitHub Actions, each cause is also an annotation.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

from paritybit.harness.cli.watch.display import Display
from paritybit.reports.annotations import github_error

from paritybit.launch.schema import Watched
from paritybit.launch.words import CauseGroup, causes_of, lines_of, plural, source_of

PAGE = "index.html"

MOST = 3
"""The number of causes that have a block."""


def show(display: Display, folder: Path, record: Watched, engine: str | None) -> None:
    """Print a block for each of the first causes, what else there is to say, and the verdict."""
    causes = causes_of(record.findings)
    for number, cause in enumerate(causes[:MOST], 1):
        display.put(f"cause {number}: {cause.name}: {cause.count}", style="bold red")
        for line in lines_of_cause(cause, folder, engine):
            display.put(f"  {line}")
    if len(causes) > MOST:
        more = plural(len(causes) - MOST, "more cause")
        display.put(f"{more}, which may be consequences; the page has all")
    if record.verdict == "finding":
        for reason in record.undecided:
            display.put(f"undecided: {reason}")
    for name in record.absent:
        display.put(f"known, but did not occur: {name}")
    display.put(f"page: {folder / PAGE}")
    verdict = "" if record.message.startswith(record.verdict) else f"{record.verdict}: "
    display.put(f"{verdict}{record.message}", style="bold")


def lines_of_cause(cause: CauseGroup, folder: Path, engine: str | None) -> Iterator[str]:
    """Yield the lines of a block: its worst finding, its line in the engine, and how to replay it.

    A case cannot choose the engine, so without one there is no command.
    """
    first = cause.findings[0]
    yield first.text
    parts = (cause.place, cause.followed, cause.known and f"known: {cause.known}")
    if about := "; ".join(filter(None, parts)):
        yield about
    if first.case is not None and engine is not None:
        yield f"replay: {replay_of(folder, first.case, engine)}"


def replay_of(folder: Path, case: str, engine: str) -> str:
    """Return the command that replays a case from the current folder."""
    return shlex.join(["paritybit", "replay", str(folder / "cases" / case), "--engine", engine])


def annotations(record: Watched, prefix: str) -> Iterator[str]:
    """Yield the workflow commands that show each unknown cause at its line.

    `prefix` is the path from the root of the engine's repository to its package.
    """
    for cause in causes_of(record.findings):
        if cause.known is not None:
            continue
        first = cause.findings[0]
        source = next(filter(None, map(source_of, cause.findings)), None)
        where = {} if source is None else {"file": f"{prefix}{source[0]}", "line": source[1]}
        told = [first.text, *(f"{name}: {text}" for name, text in lines_of(first))]
        yield github_error("\n".join(told), **where, title=f"{first.check}: {cause.name}")
