"""A Markdown summary of a run, for example for a CI job. Texts from the record are escaped."""

import re
from collections.abc import Iterable, Iterator, Sequence

from paritybit.harness.records.schema import Record
from paritybit.reports.causes import Group
from paritybit.reports.review import Review, review

MOST_LINES = 50
"""The maximum number of lines per section. The page has all."""


def summarise(record: Record) -> str:
    """Return the summary."""
    return "\n".join(_lines(record, review(record))) + "\n"


def _lines(record: Record, shown: Review) -> Iterator[str]:
    yield f"## {shown.sign} paritybit: {shown.word.lower()}"
    yield ""
    yield text(record.message)
    yield ""
    if record.scope is not None:
        yield f"Tried: {text(record.scope.tried)}."
        yield f"Not tried: {text(record.scope.untried)}."
        yield ""
    if shown.failed:
        yield "### What failed"
        yield ""
        for failed in shown.failed[:MOST_LINES]:
            yield from _told(failed.group)
        if len(shown.failed) > MOST_LINES:
            yield f"- and {len(shown.failed) - MOST_LINES} more causes"
        yield ""
    if shown.attention:
        yield "### Needs attention"
        yield ""
        yield from (f"- {text(piece.text)}" for piece in shown.attention[:MOST_LINES])
        if len(shown.attention) > MOST_LINES:
            yield f"- and {len(shown.attention) - MOST_LINES} more"
        yield ""
    if shown.runner_rows:
        yield "### Bugs and runners"
        yield ""
        yield from table(
            ["bug", *map(text, shown.runners)],
            ([row.bug, *(pair.sign for pair in row.pairs)] for row in shown.runner_rows),
        )
        yield ""
        yield (
            "Cells show the schedules needed to detect the bug, by source; ○ tested, "
            "cannot affect the runner; – cannot be switched on in this runner; ✕ "
            "unexpected result; · not selected."
        )
        yield ""
    yield "### Figures"
    yield ""
    yield from table(
        ["figure", "value"],
        ([fact.name, fact.value] for fact in (*shown.figures, *shown.environment)),
    )


def _told(group: Group) -> Iterator[str]:
    """Yield one cause: status, shortest failure, explanation and replay command."""
    name = f"{text(group.status)}**: {text(group.cause)} ({group.count})"
    yield f"- **{name}: {text(group.first.title)}"
    yield from (f"  - {text(sentence)}" for sentence in group.told)
    if group.replay:
        yield f"  - {text(group.replay)}"
    if group.others:
        yield f"  - also: {text(group.others)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table. The cells of its rows are escaped."""
    yield _row(head)
    yield _row(["---"] * len(head))
    yield from (_row([text(cell) for cell in row]) for row in rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def text(value: str) -> str:
    """Return a text on one line with all special characters of Markdown and HTML escaped."""
    return re.sub(r"([\\`*_{}\[\]()<>#|!&~@])", r"\\\1", " ".join(value.split()))
