"""logits_parity: detects wrong outputs, which a user would notice."""

from paritybit.harness.checks.differences import first_output_difference
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.observation import Observation


def judge(observation: Observation) -> Description | None:
    """Name the first live row that differs, its owner and both bit patterns."""
    graph, output = observation.graph, observation.graph.output
    if observation.eager.output is None or output is None or graph.batch is None:
        return None
    where = first_output_difference(observation.eager.output, output)
    if where is None:
        return None
    if "eager" in where:  # The shapes or dtypes differ, so rows cannot be compared.
        forms = f"eager {where['eager']}, graph {where['graph']}"
        return f"the outputs have different shapes or dtypes: {forms}", where
    rows = len(output[where["tensor"]])
    span = graph.batch.spans[graph.batch.requests_of_rows(rows)[where["row"]]]
    where["owner"] = f"request {graph.serial_at(span.row)}"
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
    judge=judge,
    diverges=True,
)
