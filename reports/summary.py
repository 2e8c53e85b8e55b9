"""A Markdown summary of a run, fit for the summary of a CI job.

Knows the record and Markdown. Every text of the record is escaped: it is shown, and makes
no markup.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reports.review import Review, review

MOST_TOLD = 50
"""Lines of what needs attention, at most: the page has them all."""


def summarise(record: Mapping[str, Any]) -> str:
    """Return the summary. Raises LookupError for a record that lacks something."""
    return "\n".join(_lines(record, review(record))) + "\n"


def _lines(record: Mapping[str, Any], message: Review) -> Iterator[str]:
    yield f"## {message.sign} paritybit: {message.word.lower()}"
    yield ""
    yield text(record["message"])
    yield ""
    if message.attention:
        yield "### Needs attention"
        yield ""
        yield from (f"- {text(piece.text)}" for piece in message.attention[:MOST_TOLD])
        if len(message.attention) > MOST_TOLD:
            yield f"- and {len(message.attention) - MOST_TOLD} more"
        yield ""
    if message.runner_rows:
        yield "### Bugs and runners"
        yield ""
        yield from _table(
            ["bug", *map(text, message.runners)],
            ([row.bug, *(pair.sign for pair in row.pairs)] for row in message.runner_rows),
        )
        yield ""
        yield (
            "Schedules drawn until it was caught, by source; ○ tried, cannot harm; – the runner"
            " lacks what it is about; ✕ not as the table says; · not asked for."
        )
        yield ""
    yield "### Figures"
    yield ""
    yield from _table(
        ["figure", "value"],
        ([fact.name, fact.value] for fact in (*message.figures, *message.environment)),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(head)
    yield _row(["---"] * len(head))
    yield from (_row([text(each) for each in row]) for row in rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def text(value: str) -> str:
    """Return a text on one line, with every character escaped that Markdown or HTML may read."""
    return re.sub(r"([\\`*_{}\[\]()<>#|!&~@])", r"\\\1", " ".join(value.split()))
