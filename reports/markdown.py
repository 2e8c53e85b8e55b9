"""Markdown with escaped texts."""

import re
from collections.abc import Iterable, Iterator, Sequence


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
