"""A Markdown summary of a record of the sanitizer, for example for a CI job."""

from collections.abc import Iterator

from paritybit.reports.markdown import table, text

from paritybit.launch.schema import Watched
from paritybit.launch.trend import label, rows
from paritybit.launch.words import CauseGroup, causes_of, lines_of

SIGNS = {"finding": "✗", "no finding": "✓", "undecided": "?"}

MOST_CAUSES = 3
"""The number of causes in a summary. The page has all."""


def summarise_watched(record: Watched) -> str:
    """Return the summary."""
    return "\n".join(lines(record)) + "\n"


def lines(record: Watched) -> Iterator[str]:
    """Yield the lines of the summary."""
    subject = record.engine or "a command"
    yield f"## {SIGNS[record.verdict]} paritybit watch, {text(subject)}: {record.verdict}"
    yield ""
    yield text(record.message)
    yield ""
    causes = causes_of(record.findings)
    if causes:
        yield "### Findings by cause"
        yield ""
        for cause in causes[:MOST_CAUSES]:
            yield from cause_lines(cause, record.engine)
        if len(causes) > MOST_CAUSES:
            yield f"- and {len(causes) - MOST_CAUSES} more, which may be consequences"
        yield ""
    if record.trend:
        yield "### Against the baseline"
        yield ""
        runs = [*(text(label(point)) for point in record.trend), "this run"]
        became = list(rows(record))
        yield from table(["cause", *runs, ""], ([r.cause, *r.cells, r.became] for r in became))
        yield ""
    reasons = record.undecided
    if reasons:
        yield "### Undecided"
        yield ""
        yield from (f"- {text(reason)}" for reason in reasons)
        yield ""
    if record.not_tried:
        yield "<details><summary>Not tried</summary>"
        yield ""
        yield from (f"- {text(one.what)}: {text(one.why)}" for one in record.not_tried)
        yield ""
        yield "</details>"


def cause_lines(cause: CauseGroup, engine: str | None) -> Iterator[str]:
    """Yield a cause: its count, its line in the engine, its first finding, a replay command."""
    known = f" \\({text(cause.known)}\\)" if cause.known else ""
    yield f"- **{text(cause.name)}**{known}: {text(cause.count)}"
    if cause.place:
        yield f"  - {text(cause.place)}"
    first = cause.findings[0]
    yield f"  - {text(first.check)}: {text(first.text)}"
    yield from (f"  - {name}: {text(words)}" for name, words in lines_of(first))
    if cause.followed:
        yield f"  - {text(cause.followed)}"
    if first.case and engine:
        yield f"  - replay: `paritybit replay cases/{first.case} --engine {engine}`"
