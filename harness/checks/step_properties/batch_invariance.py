"""batch_invariance: detects batching or padding that changes the arithmetic."""

from dataclasses import dataclass

from paritybit.harness.checks.differences import first_output_difference
from paritybit.harness.checks.property import Description, Property
from paritybit.harness.lockstep.bits import clone_output
from paritybit.harness.lockstep.fresh_run import Collect, FreshRun
from paritybit.harness.lockstep.observation import Observation
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.lockstep.requests import PlannedStep
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.model import Output
from paritybit.subjects.protocol import Overrides


@dataclass(frozen=True)
class Variant:
    """The output of the step with another batching: its requests `order`, in that order."""

    description: str
    order: tuple[int, ...]
    output: Output


LARGEST = "in its runner's largest bucket"


def prepare(pair: Pair, planned: PlannedStep) -> Collect | None:
    """Run the step eagerly in reverse order, and with one request."""
    batch = planned.eager.batch
    if batch is None:
        return None
    everyone, found = tuple(range(batch.live_requests)), list[Variant]()
    one = batch.spans[0].end % batch.live_requests
    for description, order in (("in reverse", everyone[::-1]), ("alone", (one,))):
        spans = [batch.spans[request] for request in order]
        output = pair.eager_decoder.forward(pair.eager_scheduler.batch_of(batch.mode, spans))
        found.append(Variant(description, order, output))
        pair.restore_eager()
    pair.fresh_engine.reset()
    return lambda forward: (*found, Variant(LARGEST, everyone, clone_output(forward.output)))


def judge(observation: Observation) -> Description | None:
    """Name the first variant that gives a request different bits, and its row."""
    variants, output = observation.extra.get("batch_invariance"), observation.eager.output
    batch = observation.graph.batch
    if not variants or output is None or batch is None:
        return None
    for variant in variants:
        usual = in_order(batch, output, variant.order)
        where = first_output_difference(usual, variant.output)
        if where is not None:
            where["variant"] = variant.description
            row = f"row {where['row']} of {where['tensor']}"
            return f"{row} has different bits when it runs {variant.description}", where
    return None


def in_order(batch: ForwardBatch, output: Output, order: tuple[int, ...]) -> Output:
    """Return the rows of an output for the requests in `order`, in that order."""
    found = {}
    for name, values in output.items():
        owners = batch.requests_of_rows(len(values))
        rows = [row for request in order for row, owner in enumerate(owners) if owner == request]
        found[name] = values[rows]
    return found


BATCH_INVARIANCE = Property(
    id="batch_invariance",
    statement=(
        "the bits of a request do not depend on its row, on other requests in the batch, or "
        "on the bucket"
    ),
    judge=judge,
    cheap=False,
    extra_run=FreshRun(prepare, overrides=Overrides(largest=True)),
)
