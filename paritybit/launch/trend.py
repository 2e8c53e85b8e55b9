"""The trend of runs: how the findings of each cause change from run to run."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from paritybit.drive.limits import BOUNDARY
from paritybit.drive.operating.actions import COUNT
from paritybit.launch.schema import Finding, Leg, Point, Watched
from paritybit.watch.settings import TRIED

MOST = 20
"""The most earlier runs that a record keeps. It keeps the last ones."""

NEW, FIXED, STAYS = "new", "fixed", "still there"
NOT_CHECKED_AGAIN, NOT_CHECKED_BEFORE = "not checked again", "not checked before"
"""The change of a cause between two runs. See `checked` for the last two."""

ANY_VALUE = ("seed", "random_seed", "model_path")
"""Settings that may differ between two runs of a leg."""

REACHED = (
    *("forwards", "replays", "padded_replays", "reads", "shared_reads", "list_entries", "idle"),
    *("drafts", "accepted_drafts", "rejected_drafts"),
)
STATES = ("forwards: ", "replays: ", "captures: ", COUNT, BOUNDARY)
"""Counts, and prefixes of counts, of places that a leg reached."""

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
        causes[finding.cause_name] += finding.number
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
    now = point_of(record)
    runs = (*record.trend, now)
    names = dict.fromkeys(name for run in (now, *reversed(record.trend)) for name in run.causes)
    for name in names:
        cells = tuple(f"{run.causes[name]:,}" if name in run.causes else ABSENT for run in runs)
        yield Row(name, cells, record.changes.get(name, ""))


def changes(before: Watched, now: Watched) -> dict[str, str]:
    """Return the change of each cause between two runs. Causes of the later run come first."""
    names = dict.fromkeys(one.cause_name for run in (now, before) for one in run.findings)
    return {name: became(name, before, now) for name in names}


def became(cause: str, before: Watched, now: Watched) -> str:
    """Return the change of a cause that a run has."""
    earlier, later = (
        [one for one in run.findings if one.cause_name == cause] for run in (before, now)
    )
    if earlier and later:
        return STAYS
    if later:
        found = any(checked(one, now, before) for one in later)
        return NEW if found else NOT_CHECKED_BEFORE
    found = now.verdict != "undecided" and all(checked(one, before, now) for one in earlier)
    return FIXED if found else NOT_CHECKED_AGAIN


def checked(finding: Finding, run: Watched, other: Watched) -> bool:
    """Return whether another run could have made a finding of this run.

    It ran the same check at no lower rate, with the same settings. There, it reached each place
    that this run reached, and as many forwards as the finding took.
    """
    if other.every > run.every or (other.checks is not None and finding.check not in other.checks):
        return False
    mine = next((leg for leg in run.legs if leg.name == finding.leg), None)
    theirs = [leg for leg in other.legs if leg.name == finding.leg]
    if mine is None or run.model != other.model:
        return False
    return any(alike(mine, leg) and reached(finding, mine, leg) for leg in theirs)


def alike(one: Leg, other: Leg) -> bool:
    """Return whether two legs have the same values of the settings that both state."""
    return all(
        set(values) <= set(other.settings.get(name, values))
        for name, values in one.settings.items()
        if name not in ANY_VALUE
    )


def reached(finding: Finding, mine: Leg, theirs: Leg) -> bool:
    """Return whether a leg reached the places that the leg of a finding reached."""
    names = [
        name
        for name, number in mine.counts.items()
        if number and (name in REACHED or name.startswith(STATES))
    ]
    tried = f"{TRIED}{finding.check}"
    names += [tried] if tried in mine.counts else []
    enough = theirs.counts.get("forwards", 0) >= (finding.forward or 0)
    return enough and all(theirs.counts.get(name, 0) for name in names)


def label(point: Point) -> str:
    """Return the name of a run: its day, and the commit or the release."""
    day = (point.started or "").partition("T")[0]
    which = point.revision[:9] if point.revision else point.engine or ""
    return " ".join(filter(None, (day, which))) or "an earlier run"
