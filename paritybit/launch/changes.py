"""Compares two runs: how the findings of each cause changed."""

from paritybit.drive.operating.actions import COUNT
from paritybit.launch.schema import (
    STAYS,
    CauseChange,
    ConfigRecord,
    RecordedFinding,
    WatchRecord,
)
from paritybit.launch.words import all_causes
from paritybit.watch.settings import TRIED

NEW, FIXED = "new", "fixed"
NOT_CHECKED_AGAIN, NOT_CHECKED_BEFORE = "not checked again", "not checked before"
"""The change of a cause between two runs. See `checked` for the last two."""

ANY_VALUE = ("seed", "random_seed", "model_path")
"""Settings that may differ between two runs of a configuration."""

REACHED = (
    *("forwards", "replays", "padded_replays", "reads", "shared_reads", "list_entries", "idle"),
    *("drafts", "accepted_drafts", "rejected_drafts"),
)
STATES = ("forwards: ", "replays: ", "captures: ", COUNT)
"""Counts, and prefixes of counts, of places that a configuration reached."""


def changes(before: WatchRecord, now: WatchRecord) -> tuple[CauseChange, ...]:
    """Return the change of each cause between two runs, new ones first."""
    earlier, later = (
        {cause.name: cause.count for cause in all_causes(run.findings)} for run in (before, now)
    )
    names = sorted({**later, **earlier}, key=lambda name: name in earlier)
    return tuple(
        CauseChange(name, became(name, before, now), earlier.get(name, ""), later.get(name, ""))
        for name in names
    )


def became(cause: str, before: WatchRecord, now: WatchRecord) -> str:
    """Return the change of a cause."""
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


def checked(finding: RecordedFinding, run: WatchRecord, other: WatchRecord) -> bool:
    """Return whether another run could have made a finding of this run.

    It ran the same check at no lower rate, with the same settings, and `reached` as much there.
    """
    if other.every > run.every or (other.checks is not None and finding.check not in other.checks):
        return False
    mine = next((one for one in run.configs if one.name == finding.config), None)
    theirs = [one for one in other.configs if one.name == finding.config]
    if mine is None or run.model != other.model:
        return False
    return any(alike(mine, one) and reached(finding, mine, one) for one in theirs)


def alike(one: ConfigRecord, other: ConfigRecord) -> bool:
    """Return whether two configurations agree in the settings that both state."""
    return all(
        set(values) <= set(other.settings.get(name, values))
        for name, values in one.settings.items()
        if name not in ANY_VALUE
    )


def reached(finding: RecordedFinding, mine: ConfigRecord, theirs: ConfigRecord) -> bool:
    """Return whether a configuration reached each place, and the forward, of a finding's one."""
    names = [
        name
        for name, number in mine.counts.items()
        if number and (name in REACHED or name.startswith(STATES))
    ]
    tried = f"{TRIED}{finding.check}"
    names += [tried] if tried in mine.counts else []
    enough = theirs.counts.get("forwards", 0) >= (finding.forward or 0)
    return enough and all(theirs.counts.get(name, 0) for name in names)


def label(run: WatchRecord) -> str:
    """Return the name of a run: its day, and the commit or the release."""
    day = (run.started or "").partition("T")[0]
    which = run.revision[:9] if run.revision else run.engine or ""
    return " ".join(filter(None, (day, which))) or "an earlier run"
