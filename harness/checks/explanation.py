"""From a violation to its explanation: the property's own file says how its cause is found.

An error of the explainer is kept, and hides no violation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from paritybit.harness.checks.of_schedules.declared_state import ID
from paritybit.harness.checks.of_steps.captured_path import CAPTURED_PATH
from paritybit.harness.checks.of_steps.live_inputs import wrong_inputs
from paritybit.harness.checks.play import EXTRA_RUN, RAISED, Lockstep, Outcome
from paritybit.harness.checks.property import Property, Violation
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.explain.counterfactuals.judge import Judge
from paritybit.harness.explain.counterfactuals.search import BY_COMPARISON, NOT_KNOWN
from paritybit.harness.explain.explanation import (
    explain,
    explain_failed,
    explain_playing,
    explain_refusal,
    explain_unbuilt,
    violating_forward,
)
from paritybit.harness.explain.facts import Explanation, SourceLine, TimelineEntry
from paritybit.harness.explain.origins.source_lines import unique
from paritybit.harness.explain.timeline import timeline_entry
from paritybit.harness.explain.waits import WAITS, explain_race
from paritybit.harness.lockstep.fresh_run import FreshRun
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.tracebacks import SubjectFailedError, traceback_of
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.subjects.overlap import Overlap
from paritybit.subjects.parts import Part


@dataclass(frozen=True)
class Explained:
    """What explaining gave: an explanation, the traceback of an error, or neither."""

    explanation: Explanation | None = None
    error: str | None = None


NOT_EXPLAINED = Explained()

MOST_EXPLAINED = 4
"""Properties that are explained at most, until the cause of one is known."""


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
    """Explain what playing a schedule violated: `target`, or else what tells a cause.

    Of several properties the first one whose cause is known is explained, else the first of which
    anything is known. `timeline` has an entry for each step played. A pair that does not keep what
    its ops did is built again. Returns None where nothing was violated, where no single forward
    tells the cause, and where no cause was found.
    """
    asked = [target] if target is not None and target in outcome.violated else order_of(outcome)
    first = None
    for property_id in asked[:MOST_EXPLAINED]:
        found = _explained(lockstep, schedule, outcome, timeline, property_id)
        found = with_lines_raised(found, violation_of(outcome, property_id))
        if found is not None and found.cause.blame != NOT_KNOWN:
            return found
        first = first or found
    return first


def violation_of(outcome: Outcome, property_id: str) -> Violation:
    """Return the violation of a property."""
    return next(found for found in outcome.violations if found.property == property_id)


def with_lines_raised(found: Explanation | None, violation: Violation) -> Explanation | None:
    """Return an explanation with the lines that raised, where a step failed.

    They come last if the cause is known, and are all there is where nothing else was found.
    """
    lines = tuple(SourceLine(*line) for line in violation.where.get(RAISED, ()))
    if not lines:
        return found
    if found is None:
        return explain_failed(violation.property, violation.step, violation.message, lines)
    known = found.cause.blame != NOT_KNOWN
    both = (*found.sources, *lines) if known else (*lines, *found.sources)
    return replace(found, sources=unique(both))


def explained_unbuilt(runner: str, failure: SubjectFailedError) -> tuple[Outcome, Explained]:
    """Return what a build violates whose engine of `runner` cannot be captured, explained."""
    message = f"the engine could not be captured: {failure}"
    violation = Violation(CAPTURED_PATH.id, 0, message)
    explanation = explain_unbuilt(CAPTURED_PATH.id, runner, failure.__cause__ or failure)
    return Outcome(violations=(violation,)), Explained(explanation)


def order_of(outcome: Outcome) -> list[str]:
    """Return what was violated in the order it is to be explained: the earliest step first.

    Undeclared state comes last: what a step did wrong says more.
    """
    found = sorted(outcome.violations, key=lambda one: (one.property == ID, one.step))
    return list(dict.fromkeys(violation.property for violation in found))


def failing_rule(outcome: Outcome, property_id: str) -> Property:
    """Return what a violation is explained by: where a further run failed, what asked for that."""
    return PROPERTIES[violation_of(outcome, property_id).where.get(EXTRA_RUN, property_id)]


def _explained(
    lockstep: Lockstep,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    property_id: str,
) -> Explanation | None:
    """Explain one property that was violated."""
    rule = failing_rule(outcome, property_id)
    if lockstep.trial.overlap:
        watched = lockstep.properties | {property_id, ID}
        in_order = Lockstep(replace(lockstep.trial, overlap=False), watched)
        outcome, timeline = observe(in_order, schedule)
        if not outcome.violated:
            return _race(lockstep, schedule, property_id)
        if property_id not in outcome.violated:
            # No race: what is wrong in order too may show elsewhere where steps overlap.
            return explanation(in_order, schedule, outcome, timeline, None)
        lockstep = in_order
    if rule.flag is None and rule.cause_in_play is None:
        return None
    if lockstep.refused is not None:
        return explain_refusal(property_id, lockstep.trial.runner, lockstep.refused)
    first = None
    for recording, excepted in recording_pairs(lockstep):
        found = _explained_by(recording, schedule, outcome, timeline, (property_id, rule))
        if found is not None and found.cause.blame not in {NOT_KNOWN, *excepted}:
            return found
        if found is None or found.cause.blame == NOT_KNOWN:
            first = first or found
    return first


def recording_pairs(lockstep: Lockstep) -> Iterator[tuple[Lockstep, frozenset[str]]]:
    """Yield locksteps that keep what their ops did, and what these cannot be trusted to blame.

    They are this one, and a new one, whose pair is new. A pair that has played may hold what no
    reset takes back. It then comes last: what it shows may be that state's doing, unless what it
    blames is wrong by itself.
    """
    with torch.inference_mode():
        undeclared = bool(lockstep.pair.captures.undeclared())
    if lockstep.pair.records_ops and not undeclared:
        yield lockstep, frozenset()
    yield Lockstep(lockstep.trial, records_ops=True), frozenset()
    if lockstep.pair.records_ops and undeclared:
        yield lockstep, BY_COMPARISON


def _explained_by(
    recording: Lockstep,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    violated: tuple[str, Property],
) -> Explanation | None:
    """Explain a violation by playing the schedule on a pair that keeps what its ops do.

    It is of a property, and explained by one, which is another where that one's further run failed.
    """
    property_id, rule = violated
    if rule.cause_in_play is not None:
        step = violation_of(outcome, property_id).step
        return explain_playing(recording.pair, schedule, step, property_id, rule.cause_in_play)
    forward = violating_forward(timeline, property_id)
    cause_of = rule.cause or (lambda _: None)
    return explain(recording.pair, schedule, forward, property_id, cause_of, judge_of(rule))


def judge_of(rule: Property) -> Judge:
    """Return what judges a forward that is run again by a property."""
    assert rule.flag is not None
    flag = rule.flag
    extra = rule.extra_run if isinstance(rule.extra_run, FreshRun) else None
    return Judge(lambda observation: bool(flag(observation)), wrong_inputs, extra)


def _race(lockstep: Lockstep, schedule: Schedule, property_id: str) -> Explanation | None:
    """Explain what is violated only where steps overlap, by making sure of one wait at a time.

    None where the schedule does not violate it once more, or no one wait makes it hold. A wait
    makes it hold if it is violated again without that wait.
    """
    overlapped, watched = lockstep.pair.overlapped, lockstep.properties
    assert overlapped is not None
    parts, order, mended = lockstep.pair.on_trial.parts, overlapped.overlap, {}
    lockstep.watch({property_id})
    try:
        again = lockstep.play(schedule)
        if property_id not in again.violated:
            return None
        for wait in WAITS:
            sure = parts.with_before({Part.OVERLAP: wait.before}).of(Part.OVERLAP, Overlap)
            overlapped.order_by(sure(lockstep.trial.streams(), order.device))
            played = lockstep.play(schedule)
            mended[wait.before] = property_id not in played.violated and played.error is None
            overlapped.order_by(order)
            if mended[wait.before]:
                mended[wait.before] = property_id in lockstep.play(schedule).violated
    finally:
        overlapped.order_by(order)
        lockstep.watch(watched)
    step = next(found.step for found in again.violations if found.property == property_id)
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
