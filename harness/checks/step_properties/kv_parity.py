"""kv_parity: detects corrupted KV before any logit shows it."""

from paritybit.harness.checks.differences import describe_slot, first_difference
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation


def judge(observation: Observation) -> Description | None:
    """Name the first slot that differs, its owner and both bit patterns."""
    different = observation.differing
    if not different.any():
        return None
    eager, graph = observation.eager.after, observation.graph.after
    where = first_difference(observation, different, eager, graph)
    bit_patterns = f" eager {where['eager_bits']}, graph {where['graph_bits']}"
    return describe_slot(where) + bit_patterns, where


KV_PARITY = Property(
    id="kv_parity",
    statement=(
        "KV and recurrent states have the same bits after graph replay as after eager execution"
    ),
    judge=judge,
    diverges=True,
)
