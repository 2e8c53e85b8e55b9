"""write_frame: detects stray writes, even to slots that are never read or in both runs."""

from paritybit.harness.checks.differences import first_difference
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation


def judge(observation: Observation) -> Description | None:
    """Name the first slot, or state slot, that a run wrote outside the frame."""
    for run, side in (("graph", observation.graph), ("eager", observation.eager)):
        stray = observation.changes.outside_frame(run)
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


WRITE_FRAME = Property(
    id="write_frame",
    statement=(
        "a step changes only the slots in its out_cache_loc, the state of its own requests, "
        "and slot 0; a draft over frozen KV changes no slot"
    ),
    judge=judge,
    diverges=True,
)
