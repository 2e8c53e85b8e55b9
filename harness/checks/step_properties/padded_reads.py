"""padded_reads: detects rows that read KV outside slot 0 and the slots of the batch."""

import math
from collections.abc import Iterator

import torch
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import any_set, cloned, first_index
from paritybit.harness.lockstep.fresh_run import FreshRun, Show, just_captured
from paritybit.harness.lockstep.noise import Noise
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.reference.model import Output
from paritybit.subjects.protocol import Forward
from torch import Tensor


def prepare(pair: Pair, planned: PlannedStep) -> Show:
    """Set all KV to NaN except the reserved page and the batch's slots."""
    pools = pair.graph_pools
    noise = Noise(pair.config, pools)
    kept = noise.owned(pair.graph, planned.graph.batch)
    for _, _, arena in pools.arenas_of(kept):
        arena[:, :, : pools.sizes.page_size] = True
    pools.storage.masked_fill_(~kept, math.nan)
    just_captured(pair, planned)
    return shown


def shown(forward: Forward) -> Output | None:
    """Return the defined output of a replay.

    Returns None without a replay, which captured_path or hermetic_replay reports.
    """
    return None if forward.replay is None else cloned(forward.replay.defined)


def turned(observation: Observation) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each float output, and a mask of the elements that became NaN.

    An output with another shape comes from another bucket, which hermetic_replay reports.
    """
    poisoned, replay = observation.extra.get("padded_reads"), observation.replay
    if poisoned is None or replay is None:
        return
    for name, values in replay.defined.items():
        other = poisoned.get(name)
        if values.is_floating_point() and other is not None and other.shape == values.shape:
            yield name, other.isnan() & ~values.isnan()


def flag(observation: Observation) -> Tensor | bool:
    """Whether any live or padded row has a NaN that it does not have without the poison."""
    found = [any_set(mask.contiguous()) for _, mask in turned(observation)]
    return torch.stack(found).any() if found else False


def describe(observation: Observation) -> Description:
    """Name the first row that has NaN."""
    replay = observation.replay
    assert replay is not None
    for name, mask in turned(observation):
        if mask.any():
            row, element = first_index(mask)
            live = row < replay.live_rows
            where = {"tensor": name, "row": row, "element": element, "live": live}
            return (
                f"{replay.runner}, {'live' if live else 'padded'} row {row}, {name} "
                f"{element}: NaN after all KV that the batch must not read was set to NaN",
                where,
            )
    raise ValueError("no row has NaN")


PADDED_READS = Property(
    id="padded_reads",
    statement="no row becomes NaN when all KV is NaN except slot 0 and the slots of the batch",
    flag=flag,
    describe=describe,
    every_step=False,
    extra_run=FreshRun(prepare),
)
