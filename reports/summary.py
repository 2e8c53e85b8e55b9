"""A Markdown summary of a run, for example for a CI job. Texts from the record are escaped."""

from collections.abc import Iterator

from paritybit.harness.records.schema import Record
from paritybit.reports.causes import Group
from paritybit.reports.markdown import table, text
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
            "Cells show the schedules needed to detect the bug; ○ tested, "
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
