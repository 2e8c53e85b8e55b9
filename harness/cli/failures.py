"""What failed, on the terminal: one block for each cause, with why it is and how to replay it."""

from collections.abc import Iterator
from textwrap import wrap

from rich.console import Console
from rich.markup import escape

from harness.records.schema import Record
from reports.causes import Group, groups

INDENT = " " * 3
REPLAY = "replay: "


def print_failures(console: Console, record: Record) -> None:
    """Print each cause of what failed: its shortest finding at length, the others by name."""
    found = groups(record)
    if not found:
        return
    count, causes = sum(len(group.failures) for group in found), len(found)
    console.print(f"\n[bold]{count} not as expected, of {causes} cause{'s' * (causes > 1)}[/]")
    for number, group in enumerate(found, start=1):
        status, cause = escape(group.status), escape(group.cause)
        console.print(f"\n{number}. [bold red]{status}[/]: [bold]{cause}[/]")
        for line in lines_of(group):
            put(console, line)


def lines_of(group: Group) -> Iterator[str]:
    """Yield what is said of failures of one cause: what, where, why, how to replay it, who else."""
    yield group.first.title
    yield from group.told
    if group.replay:
        yield f"{REPLAY}{group.replay}"
    if group.others:
        yield f"also: {group.others}"


def put(console: Console, line: str) -> None:
    """Print a line, indented and folded between words; a command stays whole, to be copied."""
    width = max(console.width - len(INDENT), len(INDENT))
    folded = [line] if line.startswith(REPLAY) else wrap(line, width, break_long_words=False)
    for part in folded:
        console.print(f"{INDENT}{part}", soft_wrap=True, highlight=False, markup=False)
