"""Formats values as text: durations, lists, links, ids."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

LINK = re.compile(r"https?://[^\s<>\"',;]+")
MOST_VALUES = 16


@dataclass(frozen=True)
class Piece:
    """A text and its link, or ''."""

    text: str
    href: str = ""


@dataclass(frozen=True)
class Fact:
    """A name and its value as text."""

    name: str
    value: str


def words(values: Iterable[Any]) -> str:
    """Return the values separated by commas, or a dash for none."""
    return ", ".join(str(value) for value in values) or "–"


def or_dash(value: Any) -> str:
    """Return a value as text, or a dash for None."""
    return "–" if value is None else str(value)


def value_text(value: Any) -> str:
    """Return a JSON value as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        more = f" and {len(value) - MOST_VALUES} more" if len(value) > MOST_VALUES else ""
        between = "; " if any(isinstance(item, str) for item in value) else ", "
        return between.join(value_text(item) for item in value[:MOST_VALUES]) + more
    return value if isinstance(value, str) else json.dumps(value)


def duration(seconds: float) -> str:
    """Return a duration as text: seconds with one decimal, or minutes and seconds."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def anchors(names: Iterable[str]) -> Iterator[str]:
    """Yield a unique id for each name that is safe in a link."""
    used: Counter[str] = Counter()
    for name in names:
        slug = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-")
        used[slug] += 1
        yield slug if used[slug] == 1 else f"{slug}--{used[slug]}"


def linked(text: str) -> tuple[Piece, ...]:
    """Split a text at its web addresses. Only http and https addresses become links."""
    pieces: list[Piece] = []
    end = 0
    for match in LINK.finditer(text):
        pieces += [Piece(text[end : match.start()]), Piece(_short(match[0]), match[0])]
        end = match.end()
    return tuple(piece for piece in [*pieces, Piece(text[end:])] if piece.text)


def _short(address: str) -> str:
    """Return the short form of an address: owner/project#number, or without its scheme."""
    found = re.fullmatch(r"https?://github\.com/([\w.-]+/[\w.-]+)/(?:pull|issues)/(\d+)", address)
    return f"{found[1]}#{found[2]}" if found else address.split("://", 1)[1]
