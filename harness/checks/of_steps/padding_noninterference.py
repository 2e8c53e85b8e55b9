"""padding_noninterference: proves, or refutes, every claim that nobody reads a byte."""

from dataclasses import dataclass

from torch import Tensor

from harness.checks.differences import (
    describe_slot,
    first_kv_difference,
    first_output_difference,
    owner_at,
)
from harness.checks.property import Description, Property
from harness.lockstep.bits import any_set, bits, cloned, outputs_differ, unequal
from harness.lockstep.noise import Noise
from harness.lockstep.observation import Observation
from harness.lockstep.pair import Pair
from harness.lockstep.requests import PlannedStep
from harness.lockstep.tracebacks import subject_runs
from reference.model import Output
from subjects.protocol import Offer


@dataclass(frozen=True)
class NoisyRun:
    """The step's live output and KV with every byte that the batch does not own made noise.

    `owned` is a bool tensor of the storage's layout: true where a request of the batch owns.
    """

    output: Output
    storage: Tensor
    owned: Tensor


def run_noisy(pair: Pair, planned: PlannedStep) -> NoisyRun:
    """Run the step on the fresh engine among noise, drawn by the step's place."""
    pools, fresh, batch = pair.graph_pools, pair.fresh_engine, planned.graph.batch
    noise = Noise(pair.config, pools)
    tables = pools.tables.req_to_token, pools.tables.full_to_swa_index_mapping
    kept = [table.clone() for table in tables]
    owned = noise.owned(pair.graph, batch)
    fresh.recapture()
    for buffers in fresh.all_static_buffers():
        noise.fill_buffers(buffers, planned.forwards)
    noise.fill_pool(pair.graph, owned, planned.forwards)
    fresh.write_kv()
    with subject_runs():
        forward = fresh.forward(batch, planned.mode)
    fresh.read_kv()
    noisy = NoisyRun(cloned(forward.output), pools.storage.clone(), owned)
    for table, bytes_before in zip(tables, kept, strict=True):
        table.copy_(bytes_before)
    pair.restore_graph()
    return noisy


def flag(observation: Observation) -> Tensor | bool:
    """Whether noise changed a live output, or KV or state that the batch owns."""
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
        return "noise in bytes nobody owns changed " + describe_slot(
            where
        ) + " it was written", where
    where = first_output_difference(output, noisy.output)
    changed = f"{where['tensor']} of live row {where['row']}"
    return f"noise in bytes nobody owns changed {changed}", where


PADDING_NONINTERFERENCE = Property(
    id="padding_noninterference",
    statement="bytes that nobody in the batch owns change nothing that is live",
    needs=frozenset({Offer.FRESH_ENGINE, Offer.NOISE}),
    flag=flag,
    describe=describe,
    every_step=False,
    extra_run=run_noisy,
)
