"""padding_noninterference: detects live results that depend on memory no request owns."""

from dataclasses import dataclass

from paritybit.harness.checks.differences import (
    describe_slot,
    first_kv_difference,
    first_output_difference,
    owner_at,
)
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import (
    any_set,
    bits,
    cloned,
    outputs_differ,
    unequal,
)
from paritybit.harness.lockstep.fresh_run import FreshRun, Show
from paritybit.harness.lockstep.noise import Noise
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.reference.model import Output
from torch import Tensor


@dataclass(frozen=True)
class NoisyRun:
    """The live output and KV of the step with noise in all bytes that the batch does not own.

    `owned` is a mask in the storage's layout: true if a request of the batch owns the element.
    """

    output: Output
    storage: Tensor
    owned: Tensor


def prepare(pair: Pair, planned: PlannedStep) -> Show:
    """Write noise to all memory that the batch does not own. The step's place is the seed."""
    pools, batch = pair.graph_pools, planned.graph.batch
    noise = Noise(pair.config, pools)
    pair.fresh_engine.reset()
    for buffers in pair.fresh_engine.all_static_buffers():
        noise.fill_buffers(buffers, planned.forwards)
    owned = noise.owned(pair.graph, batch)
    noise.fill_pool(pair.graph, owned, planned.forwards)
    return lambda forward: NoisyRun(cloned(forward.output), pools.storage.clone(), owned)


def flag(observation: Observation) -> Tensor | bool:
    """Whether noise changed a live output, or KV or other state that the batch owns."""
    noisy, output = observation.extra.get("padding_noninterference"), observation.graph.output
    if noisy is None or output is None:
        return False
    stored = any_set(unequal(noisy.storage, observation.graph.after).logical_and_(noisy.owned))
    return stored | outputs_differ(noisy.output, output)


def describe(observation: Observation) -> Description:
    """Name the first slot or live row that noise changed."""
    noisy, output = observation.extra["padding_noninterference"], observation.graph.output
    storage = observation.graph.after
    assert output is not None
    if ((bits(noisy.storage) != bits(storage)) & noisy.owned).any():
        where = first_kv_difference(observation.layout, storage, noisy.storage, noisy.owned)
        where["owner"] = owner_at(where, observation.graph)
        changed = describe_slot(where).removesuffix(":")
        return f"noise in unowned memory changed {changed}", where
    where = first_output_difference(output, noisy.output)
    changed = f"{where['tensor']} of live row {where['row']}"
    return f"noise in unowned memory changed {changed}", where


PADDING_NONINTERFERENCE = Property(
    id="padding_noninterference",
    statement="memory that no request in the batch owns does not affect live results",
    flag=flag,
    describe=describe,
    every_step=False,
    extra_run=FreshRun(prepare),
)
