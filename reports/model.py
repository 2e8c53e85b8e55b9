"""The model of a report: a verdict, the causes of failures, and sections of blocks.

The page, the terminal and the Markdown summary show the same model. It has no markup, and judges
nothing: verdicts come from records.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from paritybit.harness.records.environment import RunEnvironment

MOST_CAUSES = 3
"""The number of causes on the terminal and in a summary. The page has all."""


@dataclass(frozen=True)
class Piece:
    """A text with a link, or '', and a tone: good, bad, warn, soft, or ''."""

    text: str
    href: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Fact:
    """A name, and its value as text with links."""

    name: str
    value: tuple[Piece, ...]

    @classmethod
    def of(cls, name: str, value: object) -> "Fact":
        """Return a fact. None is a dash, and public addresses in a text become links."""
        return cls(name, link_addresses("–" if value is None else str(value)))

    @property
    def text(self) -> str:
        """The value without its links."""
        return "".join(piece.text for piece in self.value)


@dataclass(frozen=True)
class ReplayCommand:
    """A command that replays a case, `file`. It runs `where`."""

    kind: ClassVar = "replay"
    file: str
    options: str = ""
    where: str = "in the folder of this page"

    def text(self, folder: str = "") -> str:
        """Return the command. `folder` is the folder of the run, if it runs elsewhere."""
        return f"paritybit replay {folder}{self.file}{self.options}"


@dataclass(frozen=True)
class Paragraph:
    """A text with a tone."""

    kind: ClassVar = "paragraph"
    text: str
    tone: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    kind: ClassVar = "facts"
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class DataTable:
    """A table. The first cell of a row is its head.

    With `printed`, the terminal shows it. With `matrix`, its columns are narrow, and their names
    stand vertically. `note` explains its signs.
    """

    kind: ClassVar = "table"
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Piece, ...], ...]
    note: str = ""
    printed: bool = False
    matrix: bool = False


@dataclass(frozen=True)
class Cell:
    """A value in a drawing. `kinds` are the classes of its box."""

    text: str
    kinds: str = ""


@dataclass(frozen=True)
class Cells:
    """Rows of boxes, each with a name and a line about it.

    With `grid`, each row has as many boxes, like the slots of a pool. With `key`, the page has a
    DrawingKey.
    """

    kind: ClassVar = "cells"
    rows: tuple[tuple[Fact, tuple[Cell, ...]], ...]
    grid: bool = False
    key: bool = True


@dataclass(frozen=True)
class DrawingKey:
    """The meaning of the boxes in all drawings."""

    kind: ClassVar = "key"


@dataclass(frozen=True)
class Bits:
    """Two bit patterns. Each side has a name, runs of equal and differing digits, and its value."""

    kind: ClassVar = "bits"
    sides: tuple[tuple[str, tuple[tuple[str, bool], ...], str], ...]
    message: str


@dataclass(frozen=True)
class Source:
    """Lines of code with their numbers. `named` is the number of the line to look at."""

    kind: ClassVar = "source"
    lines: tuple[tuple[int, str], ...]
    named: int | None


@dataclass(frozen=True)
class Card:
    """Blocks that are shown on demand: one finding, hunt or cause in full.

    The title, the status with its tone, and `summary` are always shown.
    """

    kind: ClassVar = "card"
    title: str
    blocks: tuple["Block", ...]
    anchor: str = ""
    status: str = ""
    tone: str = ""
    summary: str = ""


Block = ReplayCommand | Paragraph | Facts | DataTable | Cells | DrawingKey | Bits | Source | Card
"""A part of a report. `kind` is its name in the template."""


@dataclass(frozen=True)
class Failure:
    """The failures of one cause.

    - `count`: how many there are.
    - `known`: where it is known from. A known cause fails nothing.
    - `line`: the file and the number of its line of code.
    - `facts`: what failed, why, and where, in a few words.
    - `short`: those facts for which a terminal has room.
    - `blocks`: the line in its source, and drawings.
    - `anchor`: the card about it, or ''.
    """

    name: str
    count: str
    facts: tuple[Fact, ...]
    short: tuple[Fact, ...] = ()
    blocks: tuple[Block, ...] = ()
    known: str = ""
    line: tuple[str, int] | None = None
    replay: ReplayCommand | None = None
    anchor: str = ""


@dataclass(frozen=True)
class PageSection:
    """A part of a page. A folded one is shown on demand."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


@dataclass(frozen=True)
class Report:
    """The report of a run.

    - `word`, `tone`, `sign`: the verdict.
    - `undecided`: why there is no verdict on something.
    """

    subject: str
    word: str
    tone: str
    sign: str
    message: str
    when: str
    command: str
    figures: tuple[Fact, ...]
    undecided: tuple[str, ...]
    causes: tuple[Failure, ...]
    sections: tuple[PageSection, ...]


LINK = re.compile(r"https?://[^\s<>\"',;]+")
THREAD = re.compile(r"https?://github\.com/([\w.-]+/[\w.-]+)/(?:pull|issues)/(\d+)")


def link_addresses(text: str) -> tuple[Piece, ...]:
    """Split a text at its web addresses. Only http and https addresses become links."""
    pieces: list[Piece] = []
    end = 0
    for found in LINK.finditer(text):
        thread = THREAD.fullmatch(found[0])
        name = f"{thread[1]}#{thread[2]}" if thread else found[0].split("://", 1)[1]
        pieces += [Piece(text[end : found.start()]), Piece(name, found[0])]
        end = found.end()
    return tuple(piece for piece in [*pieces, Piece(text[end:])] if piece.text)


def comma_separated(values: Iterable[object]) -> str:
    """Return the values separated by commas, or a dash for none."""
    return ", ".join(map(str, values)) or "–"


def duration(seconds: float) -> str:
    """Return a duration as text: seconds with one decimal, or minutes and seconds."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def environment_facts(found: RunEnvironment) -> Iterator[Fact]:
    """Yield what is known of the environment of a run."""
    dirty = ", with uncommitted changes" if found.dirty else ""
    if found.device:
        yield Fact.of("device", found.device)
    yield Fact.of("paritybit", found.paritybit)
    yield Fact.of("commit", f"{(found.commit or 'not recorded')[:12]}{dirty}")
    for name, version in found.versions.items():
        yield Fact.of(name, version or "not installed")


def anchors(names: Iterable[str]) -> Iterator[str]:
    """Yield a unique id for each name that is safe in a link."""
    used: Counter[str] = Counter()
    for name in names:
        slug = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-")
        used[slug] += 1
        yield slug if used[slug] == 1 else f"{slug}--{used[slug]}"
