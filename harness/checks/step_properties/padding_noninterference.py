"""padding_noninterference: detects results that depend on memory that they may not read."""

from dataclasses import dataclass

from paritybit.harness.checks.differences import (
    describe_slot,
    first_difference,
    first_output_difference,
)
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import clone_output, first_index, unequal
from paritybit.harness.lockstep.fresh_run import Collect, FreshRun
from paritybit.harness.lockstep.noise import Noise
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.reference.model import Output
from torch import Tensor


@dataclass(frozen=True)
class NoisyRun:
    """The step with noise in all bytes that the batch does not own.

    `output` is the live output, `defined` that of all rows, or None without a replay. `owned` is a
    mask in the storage's layout: true if a request of the batch owns the element.
    """

    output: Output
    defined: Output | None
    storage: Tensor
    owned: Tensor


def prepare(pair: Pair, planned: PlannedStep) -> Collect:
    """Write noise to all memory that the batch does not own. The step's place is the seed."""
    pools, batch = pair.graph_pools, planned.graph.batch
    noise = Noise(pools, planned.forwards)
    pair.fresh_engine.reset()
    for buffers in pair.fresh_engine.all_static_buffers():
        noise.fill_buffers(buffers)
    owned = noise.owned(pair.graph_scheduler, batch)
    noise.fill_pool(pair.graph_scheduler, owned)
    return lambda forward: NoisyRun(
        clone_output(forward.output),
        None if forward.replay is None else clone_output(forward.replay.defined),
        pools.storage.clone(),
        owned,
    )


def judge(observation: Observation) -> Description | None:
    """Name the first slot or live row that noise changed, or the first row that it made NaN."""
    noisy = observation.extra.get("padding_noninterference")
    if noisy is None:
        return None
    if observation.graph.output is not None:
        found = _live_change(observation, noisy, observation.graph.output)
        if found is not None:
            return found
    return _nan_row(observation, noisy)


def _live_change(observation: Observation, noisy: NoisyRun, output: Output) -> Description | None:
    storage = observation.graph.after
    changed = unequal(noisy.storage, storage).logical_and_(noisy.owned)
    if changed.any():
        where = first_difference(observation, changed, storage, noisy.storage)
        return f"noise in unowned memory changed {describe_slot(where).removesuffix(':')}", where
    found = first_output_difference(output, noisy.output)
    if found is None:
        return None
    row = f"{found['tensor']} of live row {found['row']}"
    return f"noise in unowned memory changed {row}", found


def _nan_row(observation: Observation, noisy: NoisyRun) -> Description | None:
    """Name the first row, live or padded, that read a NaN outside the batch and slot 0."""
    replay = observation.replay
    if replay is None or noisy.defined is None:
        return None
    for name, values in replay.defined.items():
        other = noisy.defined.get(name)
        if not values.is_floating_point() or other is None or other.shape != values.shape:
            continue
        became = other.isnan() & ~values.isnan()
        if became.any():
            row, element = first_index(became)
            live = row < replay.live_rows
            return (
                f"{replay.runner}, {'live' if live else 'padded'} row {row}, {name} {element}: "
                "NaN after all KV that the batch must not read was set to NaN",
                {"tensor": name, "row": row, "element": element, "live": live},
            )
    return None


PADDING_NONINTERFERENCE = Property(
    id="padding_noninterference",
    statement=(
        "memory that no request in the batch owns does not affect live results, and padded rows "
        "read no KV but slot 0 and the slots of the batch"
    ),
    judge=judge,
    cheap=False,
    extra_run=FreshRun(prepare),
)
