"""From a violated property to its explanation: record the forward, and find the cause."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from paritybit.harness.explain.build_faults import refused_build_cause
from paritybit.harness.explain.cause import CauseFinder
from paritybit.harness.explain.counterfactuals.judge import Judge
from paritybit.harness.explain.counterfactuals.search import Search
from paritybit.harness.explain.facts import (
    Cause,
    CodeSite,
    Explanation,
    Situation,
    SourceLine,
    TimelineEntry,
)
from paritybit.harness.explain.further_runs.further import further_cause, record_further
from paritybit.harness.explain.further_runs.recaptured import recaptured_cause
from paritybit.harness.explain.origins.source_lines import source_lines
from paritybit.harness.explain.pictures import slots_of_forward, static_inputs
from paritybit.harness.explain.proof import prove
from paritybit.harness.explain.recorded import RecordedForward, record_forward
from paritybit.harness.explain.tracing import RAISED_IN, raised_at
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.schedules.schedule import Schedule

PlayCauseFinder = Callable[[Pair, Schedule, int], tuple[Situation, Cause] | None]
"""Plays a schedule, and returns the cause of a violation at one of its steps, with its place."""


def explain(
    pair: Pair,
    schedule: Schedule,
    forward: int,
    property_id: str,
    cause_of: CauseFinder,
    judge: Judge,
) -> Explanation | None:
    """Return why `property_id` is violated at a forward of a schedule, or None without a cause.

    `forward` counts the schedule's forwards from 0. The worlds must not have diverged before it.
    `pair` records the ops of its replays. `cause_of` finds what the forward's own run shows. A
    cause is kept only if, with that alone changed, `judge` finds that the property holds in the run
    that violates it. Raises ValueError if there is no such forward.
    """
    with torch.inference_mode():
        recorded = recorded_for(pair, schedule, forward, property_id, judge)
        at_fault = run_at_fault(recorded, judge)
        # Static inputs are read before any further run overwrites them.
        play = partial(recorded_for, pair, schedule, forward, property_id, judge)
        search, own = Search(at_fault, judge, play), at_fault is recorded
        cause = recaptured_cause(recorded, schedule, judge)
        cause = cause or search.settled(cause_of(recorded) if own else None)
        words = None if own or judge.extra_run is None else judge.extra_run.words
        if cause is None and words is not None:
            cause = cause_of(recorded) or further_cause(recorded, f"when it runs {words}")
        if cause is None:
            return None
        at = _situation(recorded, at_fault, words)
        return Explanation(
            property=property_id,
            at=at,
            cause=cause,
            proof=prove(property_id, at, cause),
            static_inputs=static_inputs(at_fault),
            slots=slots_of_forward(at_fault),
            sources=source_lines(at_fault.runner, cause),
        )


def _situation(
    recorded: RecordedForward, at_fault: RecordedForward, further: str | None
) -> Situation:
    """Return what ran. If the path was wrong, this is what replayed the batch, if anything."""
    turn, seen = recorded.forward_id, recorded.observation
    runner, bucket, live_size = turn.runner, at_fault.bucket, recorded.live_size
    if recorded.off_path and seen is not None:
        replay = seen.replay
        runner = None if replay is None else replay.runner
        bucket = None if replay is None else replay.bucket
        live_size = None if replay is None else replay.live_size
    return Situation(turn.step, runner, bucket, live_size, at_fault.run.failed, further)


def recorded_for(
    pair: Pair, schedule: Schedule, forward: int, property_id: str, judge: Judge
) -> RecordedForward:
    """Record a forward of a schedule, and the further run that a property asks for, if any."""
    if judge.extra_run is None:
        return record_forward(pair, schedule, forward)
    return record_further(pair, schedule, forward, property_id, judge.extra_run)


def run_at_fault(recorded: RecordedForward, judge: Judge) -> RecordedForward:
    """Return the run that violates the property: the forward's own, or the further one."""
    further, extra = recorded.further, judge.extra_run
    if further is None or extra is None or not (extra.suspect or further.run.failed):
        return recorded
    return further


def explain_playing(
    pair: Pair, schedule: Schedule, step: int, property_id: str, cause_of: PlayCauseFinder
) -> Explanation | None:
    """Return why `property_id` is violated at a step of a schedule, or None without a cause."""
    with torch.inference_mode():
        found = cause_of(pair, schedule, step)
    if found is None:
        return None
    at, cause = found
    return _told(property_id, at, cause)


def explain_refusal(property_id: str, runner: str, reason: str) -> Explanation:
    """Return why `property_id` is violated by a build that refuses to capture `runner`'s engine."""
    return _told(property_id, Situation(0, runner), refused_build_cause(reason))


def explain_unbuilt(property_id: str, runner: str, error: BaseException) -> Explanation:
    """Return why `property_id` is violated by a build whose capture raises `error`."""
    lines = raised_at(error)
    message = f"the capture fails: {error}"
    function = lines[0].what.removeprefix(RAISED_IN) if lines else ""
    site = CodeSite(function, lines[0].file, message, lines[0].line) if lines else None
    cause = Cause("build", site=site, made=lines)
    return _told(property_id, Situation(0, runner), cause)


def explain_failed(
    property_id: str, step: int, message: str, lines: tuple[SourceLine, ...]
) -> Explanation:
    """Return what is known about a step that failed: the lines that raised."""
    line, at = lines[0], Situation(step, None, failed=message)
    proof = (
        f"In step {step}, {message}.",
        f"It was {line.what} ({line.file}, line {line.line}).",
        f"So {property_id} does not hold, and the cause is not known.",
    )
    return Explanation(property_id, at, Cause("not known", made=lines), proof, sources=lines)


def _told(property_id: str, at: Situation, cause: Cause) -> Explanation:
    """Return the explanation of a cause that no single forward shows."""
    proof, lines = prove(property_id, at, cause), source_lines(None, cause)
    return Explanation(property_id, at, cause, proof, sources=lines)


def violating_forward(timeline: Iterable[TimelineEntry], property_id: str) -> int:
    """Return the number of the forward, from 0, at which a property is first violated.

    A forward that failed has no timeline entry. If no entry has the violation, it is the forward
    after the last entry.
    """
    forwards = [entry for entry in timeline if entry.mode is not None]
    for number, entry in enumerate(forwards):
        if property_id in entry.violated:
            return number
    return len(forwards)
