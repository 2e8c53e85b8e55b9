"""What the page shows of a shrunk case of an engine: its steps, and at the violation why."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

import torch
from paritybit.harness.checks.play import Lockstep
from paritybit.harness.engines.explained.inputs import InputLedger
from paritybit.harness.explain.facts import (
    Cause,
    Explanation,
    GivenValue,
    Situation,
    Slot,
    SlotMap,
    TimelineEntry,
)
from paritybit.harness.explain.pictures import Stored, slot_maps
from paritybit.harness.explain.proof import prove
from paritybit.harness.explain.timeline import timeline_entry
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.records.case import Case
from paritybit.harness.schedules.schedule import Step
from paritybit.reference.batch import Mode
from paritybit.reference.config import Role
from paritybit.subjects.engines.shared.engine import TriedEngine
from paritybit.subjects.runners import RUNNERS
from torch import Tensor


@dataclass(frozen=True)
class Counterexample:
    """A case played once more: what each step did, and why the violation, where that is known."""

    case: Case
    timeline: tuple[TimelineEntry, ...]
    explanation: Explanation | None


def counterexample(lockstep: Lockstep, case: Case, blamed: Collection[str]) -> Counterexample:
    """Play a case and return what its page shows.

    `blamed` are the static inputs of which it was proved that what earlier replays left in them
    is the cause. Nothing is explained of a step that replays nothing.
    """
    at = next((one["step"] for one in case.violations if one["property"] == case.target), None)
    timeline, found = list[TimelineEntry](), list[Explanation]()
    ledger, mode = InputLedger(case.trial.runner), RUNNERS[case.trial.runner].mode
    ledger.begin(just_captured(lockstep.pair, mode))

    def see(
        place: int, step: Step, observation: Observation | None, violated: frozenset[str]
    ) -> None:
        timeline.append(timeline_entry(lockstep.pair, place, step, observation, violated))
        if observation is None:
            return
        ledger.see(lockstep.pair.subject.static_buffers(mode), observation)
        if place == at and observation.replay is not None:
            found.append(_explained(lockstep, case, observation, ledger, blamed))

    lockstep.play(case.schedule, see)
    return Counterexample(case, tuple(timeline), found[0] if found else None)


def just_captured(pair: Pair, mode: Mode) -> dict[str, Tensor]:
    """Return copies of what the static inputs of a mode's runner hold just captured."""
    with torch.inference_mode():
        pair.fresh_engine.recapture()
        held = pair.fresh_engine.static_buffers(mode)
        return {name: buffer.clone() for name, buffer in held.items()}


def _explained(
    lockstep: Lockstep,
    case: Case,
    observation: Observation,
    ledger: InputLedger,
    blamed: Collection[str],
) -> Explanation:
    """Explain a violation at a replay by what the static inputs held, and draw them and the slots.

    Every tensor of an observation is valid until the next step.
    """
    replay = observation.replay
    assert replay is not None and case.target is not None
    at = Situation(observation.place, replay.runner, replay.bucket, replay.live_size)
    cause = _cause(lockstep, case, observation, ledger, blamed)
    return Explanation(
        property=case.target,
        at=at,
        cause=cause,
        proof=prove(case.target, at, cause) if cause.given is not None else _told(case, at),
        static_inputs=ledger.rows(observation, blamed),
        slots=_slots(observation),
    )


def _told(case: Case, at: Situation) -> tuple[str, ...]:
    """Tell a violation of which no element of a static input is known to be the cause."""
    seen = next(one for one in case.violations if one["property"] == case.target)
    return (
        f"Step {at.step} runs {at.runner}'s graph for bucket {at.bucket} with "
        f"{at.live_size} live rows.",
        f"Then {seen['message']}.",
        f"So {case.target} does not hold.",
    )


def _cause(
    lockstep: Lockstep,
    case: Case,
    observation: Observation,
    ledger: InputLedger,
    blamed: Collection[str],
) -> Cause:
    """Return the element that led there, and the slot that it names.

    That is the one that the violation names, or the first stale one of the inputs to blame.
    """
    named = _named(case, ledger)
    stale = [
        (name, element)
        for name in blamed
        if name in ledger.inputs
        for element in ledger.stale(name, observation)
    ]
    if named is None and not stale:
        return Cause("inputs" if blamed else "not known")
    name, element, right = named or (*stale[0], None)
    held = ledger.inputs[name]
    value, captured = (int(one.flatten()[element]) for one in (held.values, held.captured))
    writer = held.left_by[element]
    slot = _slot(lockstep, observation, name, value)
    given = GivenValue(
        what=f"{name}[{element}]",
        value=str(value) if slot is None else f"{value}, which is slot {slot.slot} in the drawing",
        right=str(captured) if right is None else right,
        stale=writer.step != observation.place,
        left_by=writer,
        how=held.how[element],
    )
    return Cause("inputs", given=given, slot=slot)


def _named(case: Case, ledger: InputLedger) -> tuple[str, int, str] | None:
    """Return the element that the violation itself names, and what is right there."""
    where = next(one["where"] for one in case.violations if one["property"] == case.target)
    name = where.get("input")
    if name not in ledger.inputs or "element" not in where:
        return None
    shape, element = ledger.inputs[name].values.shape, 0
    for place, size in zip(where["element"], shape, strict=True):
        element = element * size + place
    return name, element, where["right"]


def _slot(lockstep: Lockstep, observation: Observation, name: str, value: int) -> Slot | None:
    """Return the slot that a value of a static input names, and whose it is."""
    subject = cast("TriedEngine", lockstep.pair.subject)
    named = subject.slot_named(name, value)
    if named is None:
        return None
    kind, slot = named
    return Slot(Role.TARGET, kind, slot, observation.graph.owner_of(kind, slot), None)


def _slots(observation: Observation) -> tuple[SlotMap, ...]:
    """Return who owns each slot after a step, and which ones differ between the worlds."""
    graph, end = observation.graph, observation.end
    assert end is not None
    return slot_maps(
        Stored(
            layout=observation.layout,
            sizes=end.sizes,
            compared=observation.compared,
            before=graph.before,
            after=graph.after,
            eager=observation.eager.after,
            owners=graph.owners,
            spans=tuple(graph.spans),
        )
    )
