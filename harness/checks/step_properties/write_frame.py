"""write_frame: detects stray writes, even to slots that are never read or in both runs."""

from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import first_index
from paritybit.harness.lockstep.observation import Observation
from torch import Tensor


def judge(observation: Observation) -> Description | None:
    """Name the first slot, or state slot, that a run wrote outside the frame."""
    for run in ("graph", "eager"):
        stray = observation.changes.outside_frame(run)
        if stray.any():
            return _describe(observation, run, stray)
    return None


def _describe(observation: Observation, run: str, stray: Tensor) -> Description:
    """Describe the first element of `stray`, a mask in the storage's layout that has one."""
    graph = observation.graph
    for role, kind, arena in observation.layout.arenas_of(stray):
        if arena.any():
            slot = first_index(arena.any(dim=(0, 1, 3, 4)))[0]
            owner = graph.owner_of(kind, slot)
            return (
                f"the {run} run changed {role} {kind} slot {slot} of {owner}, which is not in the "
                "step's out_cache_loc",
                {"run": run, "model": str(role), "kind": str(kind), "slot": slot, "owner": owner},
            )
    slot = first_index(observation.layout.states_of(stray).any(dim=(1, 2)))[0]
    owner = graph.owner_of_state(slot)
    return (
        f"the {run} run changed recurrent state slot {slot} of {owner}, which does not belong "
        "to the step",
        {"run": run, "state_slot": slot, "owner": owner},
    )


WRITE_FRAME = Property(
    id="write_frame",
    statement=(
        "a step changes only the slots in its out_cache_loc, the state of its own requests, "
        "and slot 0; a draft over frozen KV changes no slot"
    ),
    judge=judge,
    diverges=True,
)
