"""From a violation to its explanation: the property's own file says how its cause is found."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.checks.play import Lockstep, Outcome
from harness.checks.table import PROPERTIES
from harness.explain.cause import explain, explain_refusal
from harness.lockstep.observation import Observation
from harness.lockstep.timeline import TimelineEntry, timeline_entry
from harness.schedules.schedule import Schedule, Step


def observe(lockstep: Lockstep, schedule: Schedule) -> tuple[Outcome, list[dict[str, Any]]]:
    """Play a schedule; return its outcome and its timeline as JSON data."""
    entries: list[TimelineEntry] = []

    def see(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        entries.append(timeline_entry(lockstep.pair, place, step, observation, violated))

    outcome = lockstep.play(schedule, see)
    return outcome, [asdict(entry) for entry in entries]


def explanation(
    lockstep: Lockstep,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[dict[str, Any]],
    target: str | None,
) -> dict[str, Any] | None:
    """Explain what playing a schedule gave: the target property, or else the first violated.

    A pair that records its ops is built where this one does not. Returns None where nothing
    was violated, where no single forward tells the cause, or where none was found. An error of
    the explanation itself is raised.
    """
    if not outcome.violations:
        return None
    violated = outcome.violated
    property_id = target if target in violated else outcome.violations[0].property
    assert property_id is not None
    find = PROPERTIES[property_id].cause
    if find is None:
        return None
    if lockstep.refused is not None:
        return explain_refusal(lockstep.trial.runner, property_id, lockstep.refused)
    recording = lockstep
    if not lockstep.pair.records_ops:
        recording = Lockstep(lockstep.trial, records_ops=True)
    forward = violating_forward(timeline, property_id)
    return explain(recording.pair, schedule, property_id, forward, find)


def violating_forward(timeline: Sequence[dict[str, Any]], property_id: str) -> int:
    """Return the number of the first forward that violated a property, counted from 0.

    A forward that failed has no entry: it is the one after them all.
    """
    forwards = [entry for entry in timeline if entry["mode"] is not None]
    for number, entry in enumerate(forwards):
        if property_id in entry["violated"]:
            return number
    return len(forwards)
