"""A report in Markdown, for CI jobs and issues. Texts from records are escaped."""

import re
from collections.abc import Iterable, Iterator

from paritybit.reports.model import MOST_CAUSES, DataTable, Failure, Report


def summary(report: Report) -> str:
    """Return the summary of a report."""
    return "\n".join(summary_lines(report)) + "\n"


def summary_lines(report: Report) -> Iterator[str]:
    """Yield the lines of a summary: verdict, causes, what is undecided, tables and figures."""
    yield f"## {report.sign} paritybit, {text(report.subject)}: {text(report.word)}"
    yield ""
    yield text(report.message)
    yield ""
    if report.causes:
        yield "### Findings by cause"
        yield ""
        for cause in report.causes[:MOST_CAUSES]:
            yield from cause_lines(cause)
        if len(report.causes) > MOST_CAUSES:
            yield f"- and {len(report.causes) - MOST_CAUSES} more"
        yield ""
    if report.undecided:
        yield "### Undecided"
        yield ""
        yield from (f"- {text(reason)}" for reason in report.undecided)
        yield ""
    for section in report.sections:
        for block in section.blocks:
            if isinstance(block, DataTable) and block.rows and section.anchor in SHOWN:
                yield f"### {section.title}"
                yield ""
                cells = ([cell.text for cell in row] for row in block.rows)
                yield from table(block.head, cells)
                yield f"\n{text(block.note)}\n"
    yield from table(("figure", "value"), ((fact.name, fact.text) for fact in report.figures))


SHOWN = ("bugs", "baseline")
"""The sections whose tables a summary has."""


def cause_lines(cause: Failure) -> Iterator[str]:
    """Yield a cause: its count, what is known, and how to replay it."""
    known = f" \\({text(cause.known)}\\)" if cause.known else ""
    yield f"- **{text(cause.name)}**{known}: {text(cause.count)}"
    yield from (f"  - {text(fact.name)}: {text(fact.text)}" for fact in cause.facts)
    if cause.replay is not None:
        yield f"  - replay: `{cause.replay.text().replace('`', '')}`"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table. Its cells are escaped."""
    names = [text(name) for name in head]
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    yield from (f"| {' | '.join(map(text, row))} |" for row in rows)


def text(value: str) -> str:
    """Return a text on one line with all special characters of Markdown and HTML escaped."""
    return re.sub(r"([\\`*_{}\[\]()<>#|!&~@])", r"\\\1", " ".join(value.split()))
