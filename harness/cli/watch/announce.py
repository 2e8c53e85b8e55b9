"""Prints the end of a `watch` run: each cause, then a short summary.

The summary has the causes with the engine's file and line, a command that replays a finding, the
page and the verdict. In GitHub Actions, each cause is also an annotation.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

from paritybit.harness.cli.failures import github_error
from paritybit.harness.cli.watch.display import Display

from paritybit.launch.schema import Watched
from paritybit.launch.words import CauseGroup, causes_of, lines_of, plural, source_of

PAGE = "index.html"

MOST = 5
"""The number of causes in the summary."""


def show(display: Display, folder: Path, record: Watched, engine: str | None) -> None:
    """Print each cause with its first finding, then the summary with the verdict."""
    causes = causes_of(record.findings)
    for cause in reversed(causes):
        display.put(f"cause: {cause.name}: {cause.count}")
        display.put_finding(cause.findings[0])
    if record.verdict == "finding":
        for reason in record.undecided:
            display.put(f"undecided: {reason}")
    for name in record.absent:
        display.put(f"known, but did not occur: {name}")
    for line in last_lines(causes, folder, engine):
        display.put(line)
    verdict = "" if record.message.startswith(record.verdict) else f"{record.verdict}: "
    display.put(f"{verdict}{record.message}", style="bold")


def last_lines(causes: list[CauseGroup], folder: Path, engine: str | None) -> Iterator[str]:
    """Yield the summary without the verdict: the causes, a replay command, and the page."""
    for cause in causes[:MOST]:
        place = f" {cause.place}" if cause.place else ""
        known = f" (known: {cause.known})" if cause.known else ""
        yield f"cause: {cause.name}: {cause.count}{place}{known}"
    if len(causes) > MOST:
        yield f"and {plural(len(causes) - MOST, 'more cause')}"
    case = next((cause.findings[0].case for cause in causes if cause.findings[0].case), None)
    if case is not None and engine is not None:
        yield f"replay: {replay_of(folder, case, engine)}"
    yield f"page: {folder / PAGE}"


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
