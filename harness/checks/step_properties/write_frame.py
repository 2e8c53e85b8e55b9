"""write_frame: detects stray writes, even to slots that are never read or in both runs."""

from paritybit.harness.checks.differences import first_difference
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import unequal
from paritybit.harness.lockstep.observation import Observation, RunSnapshot
from paritybit.reference.batch import Mode
from paritybit.reference.config import Kind
from torch import Tensor


def judge(observation: Observation) -> Description | None:
    """Name the first slot, or state slot, that a run wrote outside the frame."""
    for run, side in (("graph", observation.graph), ("eager", observation.eager)):
        stray = outside_frame(observation, side)
        if stray.any():
            found = first_difference(observation, stray, side.before, side.after)
            keys = ("model", "kind", "slot", "state_slot", "owner")
            where = {"run": run} | {key: found[key] for key in keys if key in found}
            if "state_slot" in found:
                slot = f"recurrent state slot {found['state_slot']}"
                rule = "does not belong to the step"
            else:
                slot = f"{found['model']} {found['kind']} slot {found['slot']}"
                rule = "is not in the step's out_cache_loc"
            return f"the {run} run changed {slot} of {found['owner']}, which {rule}", where
    return None


def outside_frame(observation: Observation, side: RunSnapshot) -> Tensor:
    """Return a mask, in the storages' layout, of what a run changed outside the step's frame.

    The frame is the slots of out_cache_loc in the pool of the writing model, and the state of the
    batch's requests that the mode writes. Padded rows may write to reserved slots and places, but
    a draft over frozen KV writes no KV at all.
    """
    layout, mode = observation.layout, observation.mode
    changed = unequal(side.after, side.before)
    if side.batch is not None and mode.written is not None:
        full = side.batch.out_cache_loc
        for kind, slots in ((Kind.FULL, full), (Kind.SWA, side.mapping[full])):
            layout.arena_of(changed, mode.written, kind).index_fill_(2, slots, value=False)
    states = layout.states_of(changed)
    if side.batch is not None and mode.advances_states:
        # A verify writes the states after its tokens, and not the request's own.
        rows = slice(1, None) if mode is Mode.TARGET_VERIFY else slice(1)
        states[:, rows].index_fill_(0, side.batch.mamba_track_indices, value=False)
    if mode is not Mode.FROZEN_DRAFT:
        return changed.logical_and_(observation.compared)
    states[0] = False
    return changed


WRITE_FRAME = Property(
    id="write_frame",
    statement=(
        "a step changes only the slots in its out_cache_loc, the state of its own requests, "
        "and slot 0; a draft over frozen KV changes no slot"
    ),
    judge=judge,
    diverges=True,
)
