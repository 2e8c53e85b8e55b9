"""The layout of a time line: one column per step played, one line per batch row.

Lengths are in pixels. The template draws it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil

from paritybit.harness.explain.facts import TimelineEntry
from paritybit.reports.texts import words

GUTTER = 72
NARROWEST = 64
ROW = 24
HEAD = 62
PARKED_ROW = 18
GAP = 14
LETTER = 7.4
"""The maximum width of a letter."""

FEWEST_COLUMNS = 6
MOST_PARKED = 6


@dataclass(frozen=True)
class Cell:
    """One batch row of one step. Its kind is `live`, `eager` (live, no replay) or `padded`."""

    kind: str
    y: int
    label: str


@dataclass(frozen=True)
class Parked:
    """A request with KV that was not in the batch, or the number of further ones."""

    y: int
    label: str


@dataclass(frozen=True)
class Column:
    """One step, centred at `x`. `edge` is the end of its bucket, or None without a replay."""

    x: int
    place: int
    step: str
    path: str
    runner: str
    cells: tuple[Cell, ...]
    parked: tuple[Parked, ...]
    parked_words: str
    tokens: int
    edge: int | None
    violated: tuple[str, ...]

    @property
    def live(self) -> str:
        """The requests of the batch in row order, as text."""
        return words(cell.label for cell in self.cells if cell.kind != "padded")

    @property
    def padded(self) -> int:
        """The number of padded rows."""
        return sum(cell.kind == "padded" for cell in self.cells)


@dataclass(frozen=True)
class Label:
    """A text to the left of the columns or below them."""

    text: str
    x: int
    y: int
    anchor: str = "end"


@dataclass(frozen=True)
class Timeline:
    """A whole time line. Lengths are in pixels.

    - `column`: the width of a column, enough for the longest label.
    - `omitted`: the number of steps left out before the first column.
    - `message`: a description in one sentence.
    """

    width: int
    height: int
    column: int
    band_height: int
    columns: tuple[Column, ...]
    labels: tuple[Label, ...]
    marks: tuple[Label, ...]
    tokens_y: int
    omitted: int
    message: str


def lay_out(entries: Sequence[TimelineEntry], room: int) -> Timeline | None:
    """Return the layout of a finding's steps, or None without steps.

    `room` is the approximate limit of boxes. If there are too many steps, the last ones are kept.
    """
    if not entries:
        return None
    rows = max(len(entry.live) + entry.padded for entry in entries)
    parked_rows = max(1, *(min(len(entry.parked), MOST_PARKED + 1) for entry in entries))
    shown = entries[-max(FEWEST_COLUMNS, room // (rows + parked_rows)) :]
    parked_y = HEAD + rows * ROW + GAP
    tokens_y = parked_y + parked_rows * PARKED_ROW + GAP
    band_height = tokens_y + 10
    width = _column_width(shown)
    columns = tuple(
        _column(GUTTER + width * index + width // 2, entry, parked_y)
        for index, entry in enumerate(shown)
    )
    marks = tuple(_marks(columns, band_height, width))
    return Timeline(
        width=_width(columns, marks, width),
        column=width,
        height=max([band_height, *(mark.y for mark in marks)]) + 8,
        band_height=band_height,
        columns=columns,
        labels=tuple(_labels(rows, parked_y, tokens_y)),
        marks=marks,
        tokens_y=tokens_y,
        omitted=len(entries) - len(shown),
        message=_describe(entries),
    )


def _column_width(shown: Sequence[TimelineEntry]) -> int:
    """Return the width of a column, so that labels do not overlap."""
    longest = max(len(label) for entry in shown for label in (entry.step, _path(entry)))
    return max(NARROWEST, 2 * ceil(longest * LETTER / 2) + 4)


def _column(x: int, entry: TimelineEntry, parked_y: int) -> Column:
    live_kind = "live" if entry.bucket is not None else "eager"
    rows = [(live_kind, str(request)) for request in entry.live] + [("padded", "")] * entry.padded
    return Column(
        x=x,
        place=entry.place,
        step=entry.step,
        path=_path(entry),
        runner=entry.runner or "",
        cells=tuple(Cell(kind, HEAD + ROW * row, label) for row, (kind, label) in enumerate(rows)),
        parked=tuple(_parked(entry.parked, parked_y)),
        parked_words=words(entry.parked),
        tokens=entry.tokens,
        edge=HEAD + ROW * len(rows) - 2 if entry.bucket is not None else None,
        violated=entry.violated,
    )


def _path(entry: TimelineEntry) -> str:
    """Describe how the step ran: in which bucket, eagerly, or without a forward."""
    if entry.bucket is not None:
        return f"bucket {entry.bucket}"
    return "no forward" if entry.mode is None else "eager"


def _parked(serials: Sequence[int], y: int) -> Iterable[Parked]:
    labels = [str(serial) for serial in serials[:MOST_PARKED]]
    if len(serials) > MOST_PARKED:
        labels.append(f"+{len(serials) - MOST_PARKED}")
    return (Parked(y + PARKED_ROW * row, label) for row, label in enumerate(labels))


def _labels(rows: int, parked_y: int, tokens_y: int) -> Iterable[Label]:
    x = GUTTER - 12
    yield Label("step", x, 16)
    yield Label("path", x, 50)
    for row in range(rows):
        yield Label(f"row {row}", x, HEAD + ROW * row + 14)
    yield Label("parked", x, parked_y + 12)
    yield Label("tokens", x, tokens_y)


def _marks(columns: Iterable[Column], top: int, width: int) -> Iterable[Label]:
    """Yield labels with the violated properties below each column, on the side with space."""
    lines = count(1)
    for column in columns:
        for name in column.violated:
            end = column.x + width // 2 - 4
            room = end > len(name) * LETTER
            yield Label(
                name,
                x=end if room else column.x - width // 2 + 4,
                y=top + 18 * next(lines),
                anchor="end" if room else "start",
            )


def _width(columns: Sequence[Column], marks: Iterable[Label], column: int) -> int:
    ends = [mark.x + len(mark.text) * LETTER for mark in marks if mark.anchor == "start"]
    return int(max([columns[-1].x + column // 2, *ends]))


def _describe(entries: Sequence[TimelineEntry]) -> str:
    message = "1 step played" if len(entries) == 1 else f"{len(entries)} steps played"
    for entry in entries:
        if entry.violated:
            message += f"; step {entry.place} ({entry.step}, {_path(entry)}"
            message += f", {entry.padded} padded) violates {words(entry.violated)}"
    return message
