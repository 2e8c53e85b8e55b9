"""The layout of the plot of schedules drawn until each hunt detected its bug.

Lengths are in pixels. The axis is logarithmic, because the first schedules matter most.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Literal

from paritybit.harness.records.schema import BugRow

LETTER = 7.3
"""The maximum width of a letter in a name."""

GAP = 16
SPAN = 420
MISSED = 48
"""The distance from the end of the axis to a hunt that detected nothing."""

LOWER = "traffic"
"""The source of schedules in the lower lane of a line."""

LANE = 18
LINE = 2 * LANE + 6
HEAD = 26
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Dot:
    """The `count` hunts of one source with equal numbers. `kind` is the source or `missed`."""

    x: int
    y: int
    radius: int
    kind: str
    count: int
    message: str


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
    """A whole plot. Lengths are in pixels. `message` describes it in one sentence."""

    title: str
    message: str
    left: int
    width: int
    height: int
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]


def lay_out(hunts: Sequence[BugRow], key: Literal["bug", "runner"], examples: int) -> Plot | None:
    """Return the plot of hunts by bug or by runner, or None if no bug had to be detected.

    `examples` is the maximum number of schedules per hunt.
    """
    target = [hunt for hunt in hunts if hunt.detected_by is not None]
    if not target:
        return None
    by_name: dict[str, list[BugRow]] = {}
    for hunt in target:
        by_name.setdefault(hunt.bug if key == "bug" else hunt.runner, []).append(hunt)
    names = list(by_name)
    left = int(max(len(name) for name in names) * LETTER) + GAP
    lines = tuple(
        Line(
            name,
            HEAD + LINE * place + LINE // 2,
            tuple(_dots(by_name[name], left, place, examples)),
        )
        for place, name in enumerate(names)
    )
    missed = sum(hunt.schedules_to_detection is None for hunt in target)
    return Plot(
        title=f"Schedules to detection, by {key}",
        message=f"{len(target) - missed} of {len(target)} hunts detected their bug",
        left=left,
        width=left + SPAN + MISSED + 2 * GAP,
        height=HEAD + LINE * len(lines),
        lines=lines,
        ticks=(
            *(Tick(_x(left, tick, examples), str(tick)) for tick in TICKS if tick <= examples),
            Tick(left + SPAN + MISSED, "never"),
        ),
    )


def _dots(hunts: Sequence[BugRow], left: int, place: int, examples: int) -> Iterator[Dot]:
    """Yield a dot for each source and number of schedules. Its size is the number of hunts."""
    groups: dict[tuple[str, int | None], list[str]] = {}
    for hunt in hunts:
        drawn = hunt.schedules_to_detection
        groups.setdefault((hunt.source, drawn), []).append(f"{hunt.bug}@{hunt.runner}")
    for (source, drawn), names in groups.items():
        caught = drawn is not None
        lane = int(source == LOWER)
        yield Dot(
            x=_x(left, drawn, examples) if drawn is not None else left + SPAN + MISSED,
            y=HEAD + LINE * place + LANE * lane + LANE // 2 + 3,
            radius=4 if len(names) == 1 else 8,
            kind=source if caught else "missed",
            count=len(names),
            message=f"{source}, {f'after {drawn}' if caught else 'never'}: {', '.join(names)}",
        )


def _x(left: int, schedules: int, examples: int) -> int:
    return left + round(SPAN * log(schedules) / log(max(2, examples)))
