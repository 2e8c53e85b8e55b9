"""Layout of a plot: how many schedules were drawn until each hunt caught its bug.

Knows the record's JSON of hunts, and pixels. Does not know markup or colours. The axis is
logarithmic: the first schedules tell a toothless generator from a good one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

LETTER = 7.3
"""Width of a letter of a name, at most."""

GAP = 16
SPAN = 420
MISSED = 48
"""How far right of the axis's end a hunt stands that caught nothing."""

STACK = 9
LINE = 22
HEAD = 26
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Dot:
    """One hunt. `kind` is its source, or missed."""

    x: int
    y: int
    kind: str
    told: str


@dataclass(frozen=True)
class Line:
    """The hunts of one bug, or of one runner."""

    name: str
    y: int
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Tick:
    """A number of schedules on the axis."""

    x: int
    text: str


@dataclass(frozen=True)
class Plot:
    """A whole plot; lengths are in pixels. `told` says in one sentence what it shows."""

    title: str
    told: str
    left: int
    width: int
    height: int
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]


def lay_out(hunts: Sequence[Mapping[str, Any]], key: str, examples: int) -> Plot | None:
    """Return the plot of hunts by `key`, bug or runner; None where no bug was to be caught.

    Of each hunt that had to catch something: `examples` schedules are the most it could draw.
    """
    sought = [hunt for hunt in hunts if hunt["caught_by"] is not None]
    if not sought:
        return None
    names = list(dict.fromkeys(hunt[key] for hunt in sought))
    left = int(max(len(name) for name in names) * LETTER) + GAP
    lines, y = [], HEAD
    for name in names:
        own = [hunt for hunt in sought if hunt[key] == name]
        dots = tuple(_dots(own, left, y + LINE // 2, examples))
        height = max(dot.y for dot in dots) - y + LINE // 2
        lines.append(Line(name, y + LINE // 2, dots))
        y += height
    missed = sum(hunt["schedules_to_detection"] is None for hunt in sought)
    return Plot(
        title=f"Schedules to detection, by {key}",
        told=f"{len(sought) - missed} of {len(sought)} hunts caught their bug",
        left=left,
        width=left + SPAN + MISSED + GAP,
        height=y + 4,
        lines=tuple(lines),
        ticks=(
            *(Tick(_x(left, tick, examples), str(tick)) for tick in TICKS if tick <= examples),
            Tick(left + SPAN + MISSED, "never"),
        ),
    )


def _dots(hunts: Sequence[Mapping[str, Any]], left: int, y: int, examples: int) -> Iterator[Dot]:
    """Yield a dot for each hunt, those at one place below one another."""
    taken: Counter[int] = Counter()
    for hunt in hunts:
        drawn = hunt["schedules_to_detection"]
        caught = drawn is not None
        x = _x(left, drawn, examples) if caught else left + SPAN + MISSED
        after = f"after {drawn}" if caught else f"not in {hunt['schedules']}"
        told = f"{hunt['bug']}@{hunt['runner']}, {hunt['source']}: {after}"
        yield Dot(x, y + STACK * taken[x], hunt["source"] if caught else "missed", told)
        taken[x] += 1


def _x(left: int, schedules: int, examples: int) -> int:
    return left + round(SPAN * log(schedules) / log(max(2, examples)))
