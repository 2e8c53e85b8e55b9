"""determinism: detects an eager forward that gives different bits when it runs again.

That a graph repeats its bits is a part of hermetic_replay.
"""

from paritybit.harness.checks.differences import (
    describe_slot,
    first_difference,
    first_output_difference,
)
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import clone_output, unequal
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.reference.model import Output
from torch import Tensor

ID = "determinism"


def run_again(pair: Pair, planned: PlannedStep) -> tuple[Output, Tensor] | None:
    """Return the output of the eager forward and all KV after it. None for an idle step."""
    if planned.eager.batch is None:
        return None
    output = clone_output(pair.eager_decoder.forward(planned.eager.batch))
    storage = pair.eager_pools.storage.clone()
    pair.restore_eager()
    return output, storage


def judge(observation: Observation) -> Description | None:
    """Name the first row or slot with different bits."""
    again, eager = observation.extra.get(ID), observation.eager
    if again is None or eager.output is None:
        return None
    output, storage = again
    where = first_output_difference(output, eager.output)
    if where is not None:
        row = f"row {where['row']} of {where['tensor']}"
        return f"{row} has different bits when the eager forward runs again", where
    different = unequal(storage, eager.after).logical_and_(observation.compared)
    if not different.any():
        return None
    where = first_difference(observation, different, storage, eager.after)
    return f"{describe_slot(where)} different bits when the eager forward runs again", where


DETERMINISM = Property(
    id=ID,
    statement="an eager forward gives the same bits when it runs again",
    judge=judge,
    cheap=False,
    extra_run=run_again,
)
