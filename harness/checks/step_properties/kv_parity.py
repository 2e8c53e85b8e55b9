"""kv_parity: detects corrupted KV before any logit shows it."""

from paritybit.harness.checks.device import launches
from paritybit.harness.checks.device.flags import Flag
from paritybit.harness.checks.device.storages import storages_differ
from paritybit.harness.checks.differences import describe_slot, first_kv_difference, owner_at
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import any_set, unequal
from paritybit.harness.lockstep.observation import Observation


def flag(observation: Observation) -> Flag:
    """Whether any compared bit of KV or other state differs between the worlds."""
    if launches.asks_kernels(observation.compared.device):
        return storages_differ(observation)
    different = unequal(observation.eager.after, observation.graph.after)
    return any_set(different.logical_and_(observation.compared))


def describe(observation: Observation) -> Description:
    """Name the first slot that differs, its owner and both bit patterns."""
    storages = observation.eager.after, observation.graph.after
    where = first_kv_difference(observation.layout, *storages, observation.compared)
    where["owner"] = owner_at(where, observation.graph)
    bit_patterns = f" eager {where['eager_bits']}, graph {where['graph_bits']}"
    return describe_slot(where) + bit_patterns, where


KV_PARITY = Property(
    id="kv_parity",
    statement=(
        "KV, recurrent states and draft table rows have the same bits after graph replay as "
        "after eager execution"
    ),
    flag=flag,
    describe=describe,
    worlds_diverge=True,
)
