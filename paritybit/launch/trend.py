"""The trend of runs: how the findings of each cause change from run to run."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from paritybit.launch.schema import Point, Watched

MOST = 20
"""The most earlier runs that a record keeps. It keeps the last ones."""

NEW, GONE, FIXED, STAYS = "new", "gone", "fixed", "still there"
"""The change of a cause. It is gone, not fixed, if a leg of the earlier run did not run again."""

ABSENT = "–"


@dataclass(frozen=True)
class Row:
    """A cause, its number of findings in each run, and its change since the last run."""

    cause: str
    cells: tuple[str, ...]
    became: str


def point_of(record: Watched) -> Point:
    """Return the point of a run in a trend."""
    causes = Counter[str]()
    for finding in record.findings:
        causes[finding.group_of] += finding.number
    legs = tuple(leg.name for leg in record.legs)
    return Point(record.started, record.revision, record.engine, record.verdict, dict(causes), legs)


def points(baseline: Watched | None) -> tuple[Point, ...]:
    """Return the runs up to the baseline."""
    if baseline is None:
        return ()
    return (*baseline.trend, point_of(baseline))[-MOST:]


def rows(record: Watched) -> Iterator[Row]:
    """Yield a row for each cause in a trend. Causes of the current run come first."""
    if not record.trend:
        return
    now, before = point_of(record), record.trend[-1]
    runs = (*record.trend, now)
    names = dict.fromkeys(name for run in (now, *reversed(record.trend)) for name in run.causes)
    for name in names:
        cells = tuple(f"{run.causes[name]:,}" if name in run.causes else ABSENT for run in runs)
        yield Row(name, cells, became(name, before, now))


def became(cause: str, before: Point, now: Point) -> str:
    """Return the change of a cause between two runs, or an empty text if neither has it."""
    if cause in now.causes:
        return STAYS if cause in before.causes else NEW
    if cause not in before.causes:
        return ""
    return FIXED if set(before.legs) <= set(now.legs) else GONE


def label(point: Point) -> str:
    """Return the name of a run: its day, and the commit or the release."""
    day = (point.started or "").partition("T")[0]
    which = point.revision[:9] if point.revision else point.engine or ""
    return " ".join(filter(None, (day, which))) or "an earlier run"
