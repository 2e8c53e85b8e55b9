"""What a run comes to, counted once: the page, the terminal and the summary say the same.

Knows the statuses of a record's rows, and what each means. Judges nothing: a status is the
record's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from paritybit.harness.records.schema import BugOnRunner, BugRow, CleanRow, Record, TrialRow

STATUSES: Mapping[str, tuple[bool, str]] = {
    "caught": (True, "The required property detected the bug."),
    "fails without the bug too": (False, "The same property is violated on the clean engine."),
    "not reproduced": (
        False,
        "The hunt detected the bug, but replaying the shrunk schedule did not.",
    ),
    "undeclared state": (
        False,
        "It depends on undeclared state, because a fresh process does not reproduce it.",
    ),
    "failed": (False, "An error ended the hunt, so it proves nothing."),
    "device lost": (False, "A step lost the device. Later work ran in a new process."),
    "unaffected": (
        True,
        "No schedule showed the bug, as expected, because it cannot affect this runner.",
    ),
    "missed": (False, "No schedule showed the bug."),
    "wrong property": (False, "A property detected the bug, but not the required one."),
    "affected after all": (False, "A property detected the bug, although none was expected to."),
    "vacuous": (False, "No replay could have shown the bug, so the hunt proves nothing."),
}
"""Of each status of a hunt: whether it is as expected, and what it means."""

GREEN = "green"
"""The one status of a clean trial that is as expected."""

MarkKind = Literal["caught", "also", "missed", "none"]


def sound(status: str) -> bool:
    """Whether a clean trial or a hunt that ended so is as it should be."""
    return status == GREEN or STATUSES.get(status, (False, ""))[0]


def together(rows: Iterable[TrialRow]) -> str:
    """Return how trials or hunts ended, taken together: the first that is not as it should be.

    Where all are, `caught` goes before `unaffected`: hunts of a bug on all runners say that it
    was caught where it can be.
    """
    statuses = [row.status for row in rows]
    wrong = [status for status in statuses if not sound(status)]
    return (wrong or [status for status in statuses if status == "caught"] or statuses)[0]


def clean_green(record: Record) -> str:
    """Return how many clean trials are green, of how many."""
    return f"{sum(row.status == GREEN for row in record.clean)} of {len(record.clean)}"


def hunts_sound(record: Record) -> str:
    """Return how many hunts ended as expected, of how many."""
    return f"{sum(sound(row.status) for row in record.bugs)} of {len(record.bugs)}"


def tried(record: Record) -> str:
    """Say what was tried, and how much of it ended as it should."""
    parts = [f"{clean_green(record)} clean trials passed"] if record.clean else []
    parts += [f"{hunts_sound(record)} hunts as expected"] if record.bugs else []
    return f"{', '.join(parts)}; {extent(record)}"


def extent(record: Record) -> str:
    """Say how much was played."""
    schedules = sum(row.schedules for row in all_rows(record))
    replays = sum(row.replays for row in all_rows(record))
    return f"{schedules:,} schedules, {replays:,} replays"


def all_rows(record: Record) -> tuple[CleanRow | BugRow, ...]:
    """Return every clean trial and every hunt, in the order of the record."""
    return (*record.clean, *record.bugs)


def judges_coverage(record: Record) -> bool:
    """Whether a state that was never reached speaks against a run.

    It does not where no clean trial was asked for, nor where the run was cut short.
    """
    return bool(record.clean) and record.verdict != "interrupted"


def that_can(rows: Sequence[BugRow]) -> Sequence[BugRow]:
    """Return the hunts of a bug that had to detect it; where none had, all of them."""
    return [row for row in rows if row.detected_by is not None] or rows


def mark(rows: Sequence[BugRow], name: str) -> MarkKind:
    """Return whether hunts that had to be seen by a property were, or others were as well."""
    must = [row for row in rows if row.detected_by == name]
    if must:
        return "caught" if all(name in row.seen for row in must) else "missed"
    return "also" if any(name in row.seen for row in rows) else "none"


def pair_mark(pair: BugOnRunner, rows: Sequence[BugRow]) -> str:
    """Return what became of a bug on a runner: `missed`, `also`, `lacking`, `unasked`, `caught`.

    `also` is tried and cannot affect the runner, `lacking` cannot be switched on in it.
    """
    if any(not sound(row.status) for row in rows):
        return "missed"
    if rows:
        return "also" if pair.unaffected is not None else "caught"
    return "unasked" if pair.can_be_switched_on else "lacking"


def to_detection(rows: Iterable[BugRow]) -> str:
    """Return how many schedules each hunt drew until it found its bug."""
    drawn = (row.schedules_to_detection for row in rows)
    return "/".join("–" if count is None else str(count) for count in drawn)
