"""What failed, on the terminal: one block for each cause, with why it is and how to replay it.

Last stands what to look at first, so that the end of a log says all that a reader asks. Where
GitHub Actions runs, each cause is also an annotation of the line of the code that it is about.
"""

import os
from collections.abc import Iterator, Mapping
from textwrap import wrap

from paritybit.harness.records.schema import Record
from paritybit.reports.causes import Group, groups, run_answers
from rich.console import Console
from rich.markup import escape

INDENT = " " * 3
REPLAY = "replay: "

NAMES = 8
"""Letters of the name of an answer, with the space behind it."""

MOST_LINES: Mapping[str, int] = {"what": 2, "why": 3, "source": 2, "tried": 2}
"""Lines that an answer may take of the last ones, where it may take more than one."""

ON_GITHUB = "GITHUB_ACTIONS"
"""The variable of the environment that is `true` where GitHub Actions runs."""

ESCAPED: Mapping[str, str] = {"%": "%25", "\r": "%0D", "\n": "%0A"}
ESCAPED_IN_PROPERTY: Mapping[str, str] = {**ESCAPED, ":": "%3A", ",": "%2C"}
"""What an annotation writes for a letter that it reads otherwise, in its text and before it."""


def print_failures(console: Console, record: Record) -> None:
    """Print each cause of what failed: its shortest finding at length, the others by name.

    Then what to look at first, once more and in short.
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


def print_first(console: Console, record: Record, group: Group) -> None:
    """Print what a reader asks of one cause, with the answers: few lines, the last of a run."""
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
    """Return the workflow command that shows a cause beside the line of the code it is about."""
    where = {"file": group.lines[0].file, "line": group.lines[0].line} if group.lines else {}
    answers = [f"{answer.name}: {answer.text}" for answer in group.answers]
    answers += [f"{REPLAY}{group.replay}"] if group.replay else []
    return github_error("\n".join(answers), **where, title=f"{group.status}: {group.cause}")


def on_github() -> bool:
    """Whether this runs in a job of GitHub Actions."""
    return os.environ.get(ON_GITHUB) == "true"


def github_error(message: str, **properties: object) -> str:
    """Return the workflow command that shows an error with properties: its file, line, title."""
    named = (
        f"{name}={_escaped(str(value), ESCAPED_IN_PROPERTY)}" for name, value in properties.items()
    )
    return f"::error {','.join(named)}::{_escaped(message, ESCAPED)}"


def _escaped(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(letter, letter) for letter in text)
