"""Explains violations. The file of a property defines how its cause is found."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from paritybit.harness.checks.play import Lockstep, Outcome
from paritybit.harness.checks.property import Property, Violation
from paritybit.harness.checks.schedule_properties.declared_state import ID
from paritybit.harness.checks.step_properties.live_inputs import wrong_inputs
from paritybit.harness.checks.step_properties.no_crash import EXTRA_RUN, NO_CRASH, RAISED
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
from paritybit.harness.lockstep.tracebacks import SubjectFailedError
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.subjects.overlap import Overlap
from paritybit.subjects.parts import Part


@dataclass(frozen=True)
class Explained:
    """The result of explaining: an explanation, the traceback of an error, or neither."""

    explanation: Explanation | None = None
    error: str | None = None


NOT_EXPLAINED = Explained()

MOST_EXPLAINED = 4
"""The maximum number of properties to explain until a cause is known."""


def observe(lockstep: Lockstep, schedule: Schedule) -> tuple[Outcome, list[TimelineEntry]]:
    """Play a schedule. Returns its outcome and an entry for each step played."""
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
    """Explain a violation of `target`, or without it of the property with the clearest cause.

    That is the first property whose cause is known, else the first with a partial explanation.
    `timeline` has an entry for each step played. A pair that does not record its ops is built
    again. Returns None without a violation, and if no cause was found.
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
    """Return an explanation with the lines that raised, if a step failed.

    They come last if the cause is known. Without another explanation, they are all of it.
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
    """Return outcome and explanation for an engine that cannot be captured."""
    message = f"the engine could not be captured: {failure}"
    violation = Violation(NO_CRASH.id, 0, message)
    explanation = explain_unbuilt(NO_CRASH.id, runner, failure.__cause__ or failure)
    return Outcome(violations=(violation,)), Explained(explanation)


def order_of(outcome: Outcome) -> list[str]:
    """Return the violated properties in the order in which to explain them, earliest step first.

    declared_state comes last, because an error in a step says more.
    """
    found = sorted(outcome.violations, key=lambda one: (one.property == ID, one.step))
    return list(dict.fromkeys(violation.property for violation in found))


def failing_rule(outcome: Outcome, property_id: str) -> Property:
    """Return the property that explains a violation: that of the extra run, if one failed."""
    return PROPERTIES[violation_of(outcome, property_id).where.get(EXTRA_RUN, property_id)]


def _explained(
    lockstep: Lockstep,
    schedule: Schedule,
    outcome: Outcome,
    timeline: Sequence[TimelineEntry],
    property_id: str,
) -> Explanation | None:
    """Explain one violated property."""
    rule = failing_rule(outcome, property_id)
    if lockstep.trial.overlap:
        watched = lockstep.properties | {property_id, ID}
        in_order = Lockstep(replace(lockstep.trial, overlap=False), watched)
        outcome, timeline = observe(in_order, schedule)
        if not outcome.violated:
            return _race(lockstep, schedule, property_id)
        if property_id not in outcome.violated:
            # Not a race. An error without overlap may appear elsewhere with overlapping steps.
            return explanation(in_order, schedule, outcome, timeline, None)
        lockstep = in_order
    if rule.flag is None and rule.cause_in_play is None and rule.raised is None:
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
    """Yield locksteps that record their ops, each with the causes not to trust from it.

    They are this one and a new one. A pair that has played may have state that no reset removes.
    It then comes last, and only causes that are wrong in themselves are trusted.
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
    """Explain a violation by playing the schedule on a pair that records its ops.

    `violated` has the violated property and the property that explains it: see `failing_rule`.
    """
    property_id, rule = violated
    if rule.cause_in_play is not None:
        step = violation_of(outcome, property_id).step
        return explain_playing(recording.pair, schedule, step, property_id, rule.cause_in_play)
    forward = violating_forward(timeline, property_id)
    cause_of = rule.cause or (lambda _: None)
    return explain(recording.pair, schedule, forward, property_id, cause_of, judge_of(rule))


def judge_of(rule: Property) -> Judge:
    """Return a function that checks a repeated forward for one property."""
    flag = rule.flag or (lambda _: False)  # A step with an observation raised no error.
    extra = rule.extra_run if isinstance(rule.extra_run, FreshRun) else None
    return Judge(lambda observation: bool(flag(observation)), wrong_inputs, extra)


def _race(lockstep: Lockstep, schedule: Schedule, property_id: str) -> Explanation | None:
    """Explain a violation that only occurs with overlapping steps, by adding one wait at a time.

    A wait is the cause if the violation disappears with it and returns without it. Returns None if
    the violation does not recur, or if there is no such wait.
    """
    overlapped, watched = lockstep.pair.overlapped, lockstep.properties
    assert overlapped is not None
    parts, order = lockstep.pair.on_trial.parts, overlapped.overlap
    lockstep.watch({property_id})
    try:
        again = lockstep.play(schedule)
        if property_id not in again.violated:
            return None
        for wait in WAITS:
            sure = parts.with_before({Part.OVERLAP: wait.before}).of(Part.OVERLAP, Overlap)
            overlapped.order_by(sure(lockstep.trial.streams(), order.device))
            played = lockstep.play(schedule)
            overlapped.order_by(order)
            if property_id in played.violated or played.error is not None:
                continue
            if property_id in lockstep.play(schedule).violated:
                break
        else:
            return None
    finally:
        overlapped.order_by(order)
        lockstep.watch(watched)
    step = next(found.step for found in again.violations if found.property == property_id)
    return explain_race(property_id, step, wait)
