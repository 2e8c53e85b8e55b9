"""Prints failures on the terminal: one block per cause, with an explanation and a replay command.

The most important cause is repeated at the end, so the end of a log is enough. In GitHub Actions,
each cause is also an annotation at its line of code.
"""

from collections.abc import Iterator, Mapping
from textwrap import wrap

from paritybit.harness.records.schema import Record
from paritybit.reports.annotations import github_error, on_github
from paritybit.reports.causes import Group, groups, run_answers
from rich.console import Console
from rich.markup import escape

INDENT = " " * 3
REPLAY = "replay: "

NAMES = 8
"""The width of an answer's name, including a space."""

MOST_LINES: Mapping[str, int] = {"what": 2, "why": 3, "source": 2, "tried": 2}
"""The maximum number of lines for a long answer."""


def print_failures(console: Console, record: Record) -> None:
    """Print each cause with its shortest finding in full and the names of the others.

    Then print a summary of the most important cause.
    """
    found = groups(record)
    if not found:
        return
    count, causes = sum(len(group.failures) for group in found), len(found)
    console.print(
        f"\n[bold]{count} unexpected result{'s' * (count > 1)} with {causes} "
        f"cause{'s' * (causes > 1)}[/]"
    )
    for number, group in enumerate(found, start=1):
        status, cause = escape(group.status), escape(group.cause)
        console.print(f"\n{number}. [bold red]{status}[/]: [bold]{cause}[/] ({group.count})")
        for line in lines_of(group):
            put(console, line)
    if on_github():
        for group in found:
            console.print(annotation(group), soft_wrap=True, highlight=False, markup=False)
    print_first(console, record, found[0])


def lines_of(group: Group) -> Iterator[str]:
    """Yield the lines about failures of one cause: what, where, why, replay command, others."""
    yield group.first.title
    yield from group.told
    if group.replay:
        yield f"{REPLAY}{group.replay}"
    if group.others:
        yield f"also: {group.others}"


def put(console: Console, line: str) -> None:
    """Print a line, indented and wrapped. A command is not wrapped, so it can be copied."""
    width = max(console.width - len(INDENT), len(INDENT))
    folded = [line] if line.startswith(REPLAY) else wrap(line, width, break_long_words=False)
    for part in folded:
        console.print(f"{INDENT}{part}", soft_wrap=True, highlight=False, markup=False)


def print_first(console: Console, record: Record, group: Group) -> None:
    """Print the short answers about one cause. They are the last lines of a run."""
    console.print(f"\n[bold]first: {escape(group.status)}: {escape(group.cause)}[/]")
    for answer in run_answers(record, group):
        width = max(console.width - NAMES, NAMES)
        folded = wrap(answer.text, width, break_long_words=False) or [""]
        most = MOST_LINES.get(answer.name, 1)
        if answer.name == "replay":
            folded = [answer.text]
        elif len(folded) > most:
            folded = [*folded[: most - 1], f"{folded[most - 1][: width - 2]} …"]
        for number, part in enumerate(folded):
            name = "" if number else answer.name
            line = f"{name:{NAMES}}{part}".rstrip()
            console.print(line, soft_wrap=True, highlight=False, markup=False)


def annotation(group: Group) -> str:
    """Return the workflow command that shows a cause at its line of code."""
    where = {"file": group.lines[0].file, "line": group.lines[0].line} if group.lines else {}
    answers = [f"{answer.name}: {answer.text}" for answer in group.answers]
    answers += [f"{REPLAY}{group.replay}"] if group.replay else []
    return github_error("\n".join(answers), **where, title=f"{group.status}: {group.cause}")
