"""Which static input's leftovers make a replay differ from one without a history.

A counterfactual: the step is run again with one static input given back what it held when it
was just captured. Where the replay is then that of an engine just captured, what an earlier
replay left in that input is the cause.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harness.checks.play import Lockstep
from harness.engines.statics import undone
from harness.lockstep.bits import any_set, bits, cloned, outputs_differ
from harness.lockstep.observation import Observation
from harness.lockstep.pair import Pair
from harness.lockstep.requests import PlannedStep
from harness.schedules.schedule import Schedule, Step
from reference.model import Output
from subjects.protocol import Forward, Reads

RUN = "healing"
"""What the further runs are called in an observation."""

BITS, READS = "outputs and KV", "slots that rows are told to read"
"""The two ways in which a replay can differ from one without a history."""

READING = frozenset({"hermetic_replay", "read_frame"})
"""Properties that are violated by what rows are told to read, if that differs."""


@dataclass(frozen=True)
class Replayed:
    """What a replay gave for live rows, what its rows were told to read, and the KV it left."""

    output: Output
    reads: Reads
    storage: Tensor
    compared: Tensor

    def differing(self, other: "Replayed") -> frozenset[str]:
        """Return the ways in which another replay of the same step differs."""
        moved = any_set((bits(self.storage) != bits(other.storage)) & self.compared)
        found = {
            BITS: bool(moved) or bool(outputs_differ(self.output, other.output)),
            READS: self.reads != other.reads,
        }
        return frozenset(way for way, differs in found.items() if differs)


Healing = Mapping[str, tuple[str, ...]]
"""By the way in which a replay differs: the static inputs each of which alone mends it."""


def healing_inputs(pair: Pair, planned: PlannedStep) -> Healing:
    """Return which static inputs, given back what they held just captured, mend a replay.

    Nothing is said of a way in which the replay is right, or wrong without a history too.
    Leaves the subject and its world as they were.
    """
    right = _kept(pair, pair.run_fresh(planned))
    pair.restore_graph()
    fresh = pair.fresh_engine
    fresh.recapture()
    captured = {name: buffer.clone() for name, buffer in fresh.static_buffers(planned.mode).items()}
    wrong = _run(pair, planned, lambda buffers: None).differing(right)
    held = pair.subject.static_buffers(planned.mode)
    left = [name for name in captured if not torch.equal(held[name], captured[name])]
    healing: dict[str, list[str]] = {way: [] for way in wrong}
    for name in left if wrong else ():
        healed = _run(pair, planned, partial(_put, name=name, value=captured[name]))
        for way in wrong - healed.differing(right):
            healing[way].append(name)
    return {way: tuple(names) for way, names in healing.items() if names}


def _put(buffers: Mapping[str, Tensor], name: str, value: Tensor) -> None:
    buffers[name].copy_(value)


def _run(
    pair: Pair, planned: PlannedStep, prepare: Callable[[Mapping[str, Tensor]], None]
) -> Replayed:
    """Run a planned replay on the subject, its static inputs prepared, and undo all it did."""
    with undone(pair, planned) as buffers:
        prepare(buffers)
        return _kept(pair, pair.run_subject(planned))


def _kept(pair: Pair, forward: Forward) -> Replayed:
    reads = forward.replay.reads if forward.replay is not None else {}
    storage = pair.graph_pools.storage.clone()
    return Replayed(cloned(forward.output), reads, storage, pair.compared)


def proven_cause(lockstep: Lockstep, schedule: Schedule, place: int, target: str) -> str | None:
    """Play a schedule; say what was proved to make its step at `place` violate a property."""
    found = dict[str, tuple[str, ...]]()

    def see(at: int, step: Step, observation: Observation | None, violated: frozenset[str]) -> None:
        if at == place and observation is not None:
            found.update(observation.extra.get(RUN, {}))

    def run(pair: Pair, planned: PlannedStep) -> Healing:
        return healing_inputs(pair, planned) if planned.place == place else {}

    lockstep.play(schedule, see, extra_runs={RUN: run})
    ways = (READS, BITS) if target in READING else (BITS,)
    way = next((way for way in ways if way in found), None)
    if way is None:
        return None
    return (
        f"what an earlier replay left in static input {' or '.join(found[way])} is the cause:"
        f" with it as it was just captured, the {way} are those of an engine without a history"
    )
