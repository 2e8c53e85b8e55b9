"""The meaning of statuses and the totals of a run, for the page, the terminal and the summary."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from paritybit.harness.records.schema import BugOnRunner, BugRow, Record, Row, Status

MEANINGS: Mapping[Status, str] = {
    Status.GREEN: "No property was violated.",
    Status.RED: "The unchanged engine must have no findings.",
    Status.CAUGHT: "The required property detected the bug.",
    Status.CLEAN_IS_RED: "The same property is violated on the clean engine.",
    Status.NOT_REPRODUCED: (
        "The hunt detected the bug, but replaying the shrunk schedule did not."
    ),
    Status.UNDECLARED_STATE: (
        "It depends on undeclared state, because a fresh process does not reproduce it."
    ),
    Status.FAILED: "An error ended the hunt, so it proves nothing.",
    Status.DEVICE_LOST: "A step lost the device. Later work ran in a new process.",
    Status.UNAFFECTED: (
        "No schedule showed the bug, as expected, because it cannot affect this runner."
    ),
    Status.MISSED: "No schedule showed the bug.",
    Status.WRONG_PROPERTY: "A property detected the bug, but not the required one.",
    Status.AFFECTED_AFTER_ALL: "A property detected the bug, although none was expected to.",
    Status.VACUOUS: "No replay could have shown the bug, so the hunt proves nothing.",
    Status.CAPTURE_WARNED: "A warning was logged while the graphs were captured.",
}
"""The meaning of each status."""

MarkKind = Literal["caught", "also", "missed", "none"]


def together(rows: Iterable[Row]) -> Status:
    """Return the common status of trials or hunts: the first unexpected one, if there is one.

    If all are expected, `caught` takes precedence over `unaffected`.
    """
    statuses = [row.status for row in rows]
    wrong = [status for status in statuses if not status.expected]
    return (wrong or [status for status in statuses if status is Status.CAUGHT] or statuses)[0]


def clean_green(record: Record) -> str:
    """Return the number of green clean trials out of all, as text."""
    return f"{sum(row.status.expected for row in record.clean)} of {len(record.clean)}"


def hunts_sound(record: Record) -> str:
    """Return the number of hunts that ended as expected out of all, as text."""
    return f"{sum(row.status.expected for row in record.bugs)} of {len(record.bugs)}"


def tried(record: Record) -> str:
    """Describe how many clean trials and hunts ended as expected."""
    parts = [f"{clean_green(record)} clean trials passed"] if record.clean else []
    parts += [f"{hunts_sound(record)} hunts as expected"] if record.bugs else []
    return f"{', '.join(parts)}; {extent(record)}"


def extent(record: Record) -> str:
    """Describe how much was played."""
    schedules = sum(row.schedules for row in all_rows(record))
    replays = sum(row.replays for row in all_rows(record))
    return f"{schedules:,} schedules, {replays:,} replays"


def all_rows(record: Record) -> tuple[Row, ...]:
    """Return all clean trials and hunts in the order of the record."""
    return (*record.clean, *record.bugs)


def judges_coverage(record: Record) -> bool:
    """Whether unreached states count against a run.

    They do not if there was no clean trial, or if the run was interrupted.
    """
    return bool(record.clean) and record.verdict != "interrupted"


def that_can(rows: Sequence[BugRow]) -> Sequence[BugRow]:
    """Return the hunts that had to detect their bug, or all hunts if none had to."""
    return [row for row in rows if row.detected_by is not None] or rows


def mark(rows: Sequence[BugRow], name: str) -> MarkKind:
    """Return the kind of mark of a property for some hunts."""
    must = [row for row in rows if row.detected_by == name]
    if must:
        return "caught" if all(name in row.seen for row in must) else "missed"
    return "also" if any(name in row.seen for row in rows) else "none"


def pair_mark(pair: BugOnRunner, rows: Sequence[BugRow]) -> str:
    """Return the result for a bug on a runner: `missed`, `also`, `lacking`, `unasked` or `caught`.

    `also` was tested and cannot affect the runner, `lacking` cannot be switched on in it, and
    `unasked` was not selected.
    """
    if any(not row.status.expected for row in rows):
        return "missed"
    if rows:
        return "also" if pair.unaffected is not None else "caught"
    return "unasked" if pair.can_be_switched_on else "lacking"


def to_detection(rows: Iterable[BugRow]) -> str:
    """Return the schedules to detection of each hunt as text."""
    drawn = (row.drawn for row in rows)
    return "/".join("–" if count is None else str(count) for count in drawn)
