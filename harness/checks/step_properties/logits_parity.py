"""logits_parity: detects wrong outputs, which a user would notice."""

from paritybit.harness.checks.device.flags import Flag, outputs_unequal
from paritybit.harness.checks.differences import first_output_difference
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation


def flag(observation: Observation) -> Flag:
    """Whether any live output of the graph world differs in any bit from the eager world's."""
    eager, graph = observation.eager.output, observation.graph.output
    if eager is None or graph is None:
        return False
    return outputs_unequal(eager, graph)


def describe(observation: Observation) -> Description:
    """Name the first live row that differs, its owner and both bit patterns."""
    eager, graph, batch = (
        observation.eager.output,
        observation.graph.output,
        observation.graph.batch,
    )
    assert eager is not None and graph is not None and batch is not None
    where = first_output_difference(eager, graph)
    if "eager" in where:  # The shapes or dtypes differ, so rows cannot be compared.
        return (
            f"the outputs have different shapes or dtypes: eager {where['eager']}, graph "
            f"{where['graph']}"
        ), where
    rows = len(eager[where["tensor"]])
    span = batch.spans[batch.requests_of_rows(rows)[where["row"]]]
    where["owner"] = f"request {observation.graph.serial_at(span.row)}"
    return (
        f"live row {where['row']} ({where['owner']}), {where['tensor']} {where['element']}:"
        f" eager {where['eager_bits']}, graph {where['graph_bits']}",
        where,
    )


LOGITS_PARITY = Property(
    id="logits_parity",
    statement=(
        "every output of every live row has the same bits with graph replay as with eager execution"
    ),
    flag=flag,
    describe=describe,
    worlds_diverge=True,
)
