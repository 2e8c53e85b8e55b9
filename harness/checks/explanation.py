"""From a violation to its explanation: the property's own file says how its cause is found.

An error of the explainer is kept, and hides no violation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.property import Property
from paritybit.harness.checks.table import PROPERTIES, STATE_PROPERTIES
from paritybit.harness.explain.explanation import (
    explain,
    explain_playing,
    explain_refusal,
    violating_forward,
)
from paritybit.harness.explain.facts import Explanation, TimelineEntry
from paritybit.harness.explain.timeline import timeline_entry
from paritybit.harness.explain.waits import WAITS, explain_race
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.tracebacks import traceback_of
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.subjects.overlap import Overlap
from paritybit.subjects.parts import Part


@dataclass(frozen=True)
class Explained:
    """What explaining gave: an explanation, the traceback of an error, or neither."""

    explanation: Explanation | None = None
    error: str | None = None


NOT_EXPLAINED = Explained()


def observe(lockstep: Lockstep, schedule: Schedule) -> tuple[Outcome, list[TimelineEntry]]:
    """Play a schedule; return its outcome and an entry for each step played."""
    entries: list[TimelineEntry] = []

    def see(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        entries.append(timeline_entry(lockstep.pair, place, step, observation, violated))

    outcome = lockstep.play(schedule, see)
    return outcome, entries


def explanation(
    lockstep: Lockstep,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    target: str | None,
) -> Explanation | None:
    """Explain what playing a schedule violated: `target`, or else the first property violated.

    `timeline` has an entry for each step played. A pair that does not keep what its ops did is
    built again. Returns None where nothing was violated, where no single forward tells the
    cause, and where no cause was found.
    """
    if not outcome.violations:
        return None
    property_id = outcome.violations[0].property
    if target is not None and target in outcome.violated:
        property_id = target
    if lockstep.trial.overlap:
        in_order = Lockstep(replace(lockstep.trial, overlap=False), STATE_PROPERTIES)
        if not in_order.play(schedule).violations:
            return _race(lockstep, schedule, outcome, property_id)
        lockstep = in_order
    rule = PROPERTIES[property_id]
    if rule.cause is None and rule.cause_in_play is None:
        return None
    if lockstep.refused is not None:
        return explain_refusal(property_id, lockstep.trial.runner, lockstep.refused)
    found = None
    if lockstep.pair.records_ops:
        found = _explained_by(lockstep, schedule, outcome, timeline, rule)
    if found is None:  # A pair that has played may hold what no reset takes back.
        new = Lockstep(lockstep.trial, records_ops=True)
        found = _explained_by(new, schedule, outcome, timeline, rule)
    return found


def _explained_by(
    recording: Lockstep,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    rule: Property,
) -> Explanation | None:
    """Explain a violation by playing the schedule on a pair that keeps what its ops do."""
    if rule.cause is not None:
        forward = violating_forward(timeline, rule.id)
        return explain(recording.pair, schedule, forward, rule.id, rule.cause)
    assert rule.cause_in_play is not None
    step = next(found.step for found in outcome.violations if found.property == rule.id)
    return explain_playing(recording.pair, schedule, step, rule.id, rule.cause_in_play)


def _race(
    lockstep: Lockstep, schedule: Schedule, outcome: Outcome, property_id: str
) -> Explanation:
    """Explain what is violated only where steps overlap, by making sure of one wait at a time."""
    overlapped, watched = lockstep.pair.overlapped, lockstep.properties
    assert overlapped is not None
    parts, order, mended = lockstep.pair.on_trial.parts, overlapped.overlap, {}
    lockstep.watch(STATE_PROPERTIES)
    try:
        for wait in WAITS:
            sure = parts.with_before({Part.OVERLAP: wait.before}).of(Part.OVERLAP, Overlap)
            overlapped.order_by(sure(lockstep.trial.streams(), order.device))
            played = lockstep.play(schedule)
            mended[wait.function] = not played.violations and played.error is None
    finally:
        overlapped.order_by(order)
        lockstep.watch(watched)
    step = next(found.step for found in outcome.violations if found.property == property_id)
    return explain_race(property_id, step, mended)


def explained(
    lockstep: Lockstep,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    target: str | None,
) -> Explained:
    """Explain as `explanation` does; return an error of the explainer as its traceback."""
    try:
        return Explained(explanation(lockstep, schedule, outcome, timeline, target))
    except Exception as error:
        return Explained(error=traceback_of(error))
