"""Explaining what a play violated. An error of the explainer is kept, and hides no violation."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from harness.explain.explanation import explain, explain_refusal, violating_forward
from harness.explain.facts import Explanation, TimelineEntry
from harness.explain.finders import FINDERS
from harness.lockstep.play import Lockstep, Outcome
from harness.schedules.schedule import Schedule


@dataclass(frozen=True)
class Explained:
    """What explaining gave: an explanation, the traceback of an error, or neither."""

    explanation: Explanation | None = None
    error: str | None = None


def explanation(
    lockstep: Lockstep,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    target: str | None,
) -> Explanation | None:
    """Explain what playing a schedule violated: `target`, or else the first property violated.

    `timeline` has an entry for each step played. A lockstep whose pair does not keep what its
    ops did is built again. Returns None where nothing was violated, where the property speaks
    of more than one forward, and where no cause was found.
    """
    if not outcome.violations:
        return None
    property_id = outcome.violations[0].property
    if target is not None and target in outcome.violated:
        property_id = target
    cause_of = FINDERS.get(property_id)
    if cause_of is None:
        return None
    if lockstep.refused is not None:
        return explain_refusal(property_id, lockstep.trial.runner, lockstep.refused)
    recording = lockstep
    if not lockstep.pair.witnessed:
        recording = Lockstep(lockstep.trial, witnessed=True)
    forward = violating_forward(timeline, property_id)
    return explain(recording.pair, schedule, forward, property_id, cause_of)


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
    except Exception:
        return Explained(error=traceback.format_exc())
