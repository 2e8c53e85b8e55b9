"""The report about a violation: what differs, which suspects were tried, and where to look.

It stands above the checks: it tries suspects with the violated property as the judge, and knows of
no property how its violations come about.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from paritybit.harness.checks.play import Outcome, SchedulePlayer
from paritybit.harness.checks.property import Property, Violation
from paritybit.harness.checks.step_properties.no_crash import EXTRA_RUN, NO_CRASH, RAISED
from paritybit.harness.checks.table import PROPERTIES
from paritybit.harness.explain.facts import (
    Explanation,
    Situation,
    SourceLine,
    TimelineEntry,
    TriedSuspect,
)
from paritybit.harness.explain.first_difference import Found
from paritybit.harness.explain.forward_facts import (
    difference_of,
    situation,
    slot_maps,
    slot_of,
)
from paritybit.harness.explain.proof import prove
from paritybit.harness.explain.recorded import RecordedForward, Reset
from paritybit.harness.explain.sources import LocatedCalls, contract_row
from paritybit.harness.explain.suspects import try_suspects
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.schedules.schedule import Schedule, Step
from paritybit.subjects.runners import RUNNERS

MOST_EXPLAINED = 4
"""The maximum number of properties to explain until a cause is known."""


@dataclass(frozen=True)
class Observed:
    """One play of a schedule: its player, its outcome, and an entry for each step played."""

    player: SchedulePlayer
    schedule: Schedule
    outcome: Outcome
    timeline: tuple[TimelineEntry, ...]


def observe(player: SchedulePlayer, schedule: Schedule) -> Observed:
    """Play a schedule."""
    entries: list[TimelineEntry] = []

    def see(
        index: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        """Add what one step did. Requests are those that run after it."""
        running = tuple(request.serial for request in player.pair.eager_scheduler.running)
        entry = TimelineEntry(index, step.name, running, tuple(sorted(violated)))
        if observation is not None:
            graph = observation.graph
            live = tuple(graph.serial_at(span.row) for span in graph.spans)
            parked = tuple(serial for serial in running if serial not in live)
            mode = f"idle {observation.mode}" if graph.batch is None else str(observation.mode)
            entry = replace(entry, mode=mode, live=live, parked=parked)
            replay = observation.replay
            if replay is not None:
                padded = replay.bucket - replay.live_size
                entry = replace(entry, runner=replay.runner, bucket=replay.bucket, padded=padded)
        entries.append(entry)

    outcome = player.play(schedule, see)
    return Observed(player, schedule, outcome, tuple(entries))


def explanation(seen: Observed, target: str | None) -> Explanation | None:
    """Explain a violation of `target`, or without it the first violation with a known cause.

    A pair that does not record its ops is built again. Returns None without a violation.
    """
    order = sorted(seen.outcome.violations, key=lambda one: one.step)
    chosen = [one for one in order if one.property == target] or order
    first = None
    for violation in chosen[:MOST_EXPLAINED]:
        found = _explain(seen, violation)
        if found.cause is not None:
            return found
        first = first or found
    return first


def without_trial(
    violation: Violation, at: Situation, suspects: tuple[TriedSuspect, ...] = ()
) -> Explanation:
    """Return the explanation of a violation that no repetition of a forward can undo.

    `suspects` are those that were tried by playing the whole schedule.
    """
    raised = (SourceLine(*line) for line in violation.where.get(RAISED, ()))
    lines = (*_rows_named(at.runner, violation.message), *raised)
    found = Explanation(violation.property, at, (), suspects=suspects, sources=lines)
    return replace(found, proof=tuple(prove(found, violation.message)))


def _explain(seen: Observed, violation: Violation) -> Explanation:
    player = seen.player
    if player.trial.overlap:
        return _of_overlap(seen, violation)
    rule, found = PROPERTIES[violation.property], None
    if player.capture_failure is None and _can_repeat(rule, violation):
        if not player.pair.records_ops:
            player = SchedulePlayer(player.trial, records_ops=True)
        found = _of_forward(player.pair, seen.schedule, rule, violation)
    return found or without_trial(violation, _situation_at(seen, violation))


def _can_repeat(rule: Property, violation: Violation) -> bool:
    """Whether a repetition of the subject's forward can undo a violation of a property.

    It cannot if an extra run on the fresh engine is at fault, or a whole schedule.
    """
    extra = rule.extra_run
    at_fault = extra is not None and getattr(extra, "at_fault", True)
    judges = rule.judge is not None or rule.id == NO_CRASH.id
    return judges and not at_fault and EXTRA_RUN not in violation.where


def _situation_at(seen: Observed, violation: Violation) -> Situation:
    if seen.player.capture_failure is not None:
        return Situation(violation.step, seen.player.trial.runner)
    entry = next((one for one in seen.timeline if one.index == violation.step), None)
    if entry is None or entry.bucket is None:
        return Situation(violation.step, None)
    return Situation(violation.step, entry.runner, entry.bucket, entry.bucket - entry.padded)


def _of_overlap(seen: Observed, violation: Violation) -> Explanation:
    """Explain a violation in overlapping steps: play the schedule without overlap, and again."""
    player, property_id = seen.player, violation.property
    one_by_one = SchedulePlayer(
        replace(player.trial, overlap=False), [one.id for one in player.properties]
    )
    in_order = observe(one_by_one, seen.schedule)
    found = explanation(in_order, property_id)
    if found is not None:
        return found
    again = player.play(seen.schedule)
    repeats = in_order.outcome.error is None and property_id in again.violated
    suspects = (TriedSuspect("overlapping steps", "holds"),) if repeats else ()
    return without_trial(violation, Situation(violation.step, None), suspects)


def _of_forward(
    pair: Pair, schedule: Schedule, rule: Property, violation: Violation
) -> Explanation | None:
    """Explain a violation by the forward of its step. None if no forward began."""
    extra_runs = {} if rule.extra_run is None else {rule.id: rule.extra_run}
    with torch.inference_mode():
        recorded = RecordedForward(pair, schedule, violation.step, extra_runs)
        if recorded.forward_id.step != violation.step:
            return None
        # Tensors of the ops are read before a repetition overwrites them.
        difference = difference_of(recorded, fresh=rule.extra_run is not None)
        found = Explanation(
            property_id=rule.id,
            at=situation(recorded),
            proof=(),
            slots=slot_maps(recorded),
        )
        if difference is not None:
            found = replace(
                found,
                difference=difference.difference,
                taken=difference.taken,
                slot=slot_of(recorded, difference),
            )
        suspects = try_suspects(recorded, rule)
        found = replace(found, suspects=suspects or (), repeats=suspects is not None)
        lines = tuple(dict.fromkeys(_lines(recorded, found, violation, difference)))
    return replace(found, sources=lines, proof=tuple(prove(found, violation.message)))


def _lines(
    recorded: RecordedForward,
    found: Explanation,
    violation: Violation,
    difference: Found | None,
) -> Iterator[SourceLine]:
    """Yield the lines to look at, the nearest to the cause first."""
    yield from (SourceLine(*line) for line in violation.where.get(RAISED, ()))
    names = [] if found.cause is None else [one.holder for one in found.cause.elements]
    yield from _rows_named(found.at.runner, " ".join([*names, violation.message]))
    if difference is not None:
        calls = LocatedCalls(difference.call)
        recorded.again(Reset(captured=False), calls)
        yield from calls.lines


def _rows_named(runner: str | None, message: str) -> Iterator[SourceLine]:
    if runner not in RUNNERS:
        return
    for name in (row.name for row in RUNNERS[runner].rows if row.name in message.split()):
        yield from contract_row(RUNNERS[runner], name)
