"""Where the eager world differs from the dense oracle: a row's keys, or the first op."""

from collections.abc import Iterator
from dataclasses import dataclass

from paritybit.harness.explain.cause import list_fault
from paritybit.harness.explain.facts import Cause, FirstDifference, ListFault, Situation
from paritybit.harness.explain.first_difference import keys_of
from paritybit.harness.explain.provenance import layers_by_address
from paritybit.harness.explain.recorded import RecordedForward, record_forward
from paritybit.harness.lockstep.bits import bits
from paritybit.harness.lockstep.observation import Sample
from paritybit.harness.lockstep.pair import Pair
from paritybit.harness.schedules.schedule import Schedule
from paritybit.reference import oracle
from paritybit.reference.config import ModelConfig, Role
from paritybit.reference.ops import OpCall
from torch import Tensor

COMPARED = (
    "according to the float64 oracle",
    "in the eager run",
    "all earlier layers are within the tolerance",
)


@dataclass(frozen=True)
class Dense:
    """The oracle's results for one sample: each layer's input and output, and logits, in `rows`.

    All are float64, [L, width], for its L tokens. A difference above `bound` is wrong.
    """

    role: Role
    config: ModelConfig
    rows: list[Tensor]
    sample: Sample
    bound: float


def dense_cause(
    pair: Pair, schedule: Schedule, forward: int, dense: Dense
) -> tuple[Situation, Cause] | None:
    """Explain why a sample's logits are off, by its forward in the eager world."""
    recorded = record_forward(pair, schedule, forward)
    row = _row_of(recorded, dense.sample)
    if row is None:
        return None
    at = Situation(recorded.forward_id.step, None)
    listed = _listed(recorded, dense, row)
    difference = _first_off(recorded, dense, row)
    if listed is None and difference is None:
        return None
    cause = Cause("not known", difference=difference, compared=COMPARED)
    if listed is not None:
        cause = Cause("key lists", listed=listed)
    return at, cause


def _row_of(recorded: RecordedForward, sample: Sample) -> int | None:
    """Return the row of a forward's ops that gave a sample's logits, or None."""
    rows, output = recorded.forward_id.rows, recorded.eager_output
    if output is None:
        return None
    logits = output["logits"]
    by_row = len(logits) == len(rows)
    same = (bits(logits) == bits(sample.logits)).all(1).nonzero().flatten().tolist()
    owners = rows if by_row else recorded.forward_id.requests
    found = next((row for row in same if owners[row] == sample.serial), None)
    if found is None or by_row:
        return found
    return max(row for row, serial in enumerate(rows) if serial == sample.serial)


def _listed(recorded: RecordedForward, dense: Dense, row: int) -> ListFault | None:
    """Return what is wrong with the keys of a row by definition, or None."""
    owner = next(owner for owner in recorded.owners if owner.serial == dense.sample.serial)
    length = len(dense.sample.tokens)
    layers = layers_by_address(recorded.pair.eager_pools)
    for call in recorded.eager_calls:
        if call.name != "attention":
            continue
        kind = layers[call.inputs[1].data_ptr()][2]
        seen = oracle.visible(kind, dense.config.window, length)[-1]
        columns = seen.nonzero().flatten().tolist()
        found = keys_of(call, row)
        if len(found) == len(columns):
            continue
        wrong = list_fault(recorded, kind, row, found, [owner.slot(kind, at) for at in columns])
        if wrong is not None:
            return wrong[0]
    return None


def _first_off(recorded: RecordedForward, dense: Dense, row: int) -> FirstDifference | None:
    """Return the first op that ends a layer and whose row differs from the oracle."""
    for (call, layer), right in zip(_ends(recorded), dense.rows, strict=False):
        place = row if row < len(call.result) else -1
        if len(call.result) != len(recorded.forward_id.rows):
            place = recorded.forward_id.requests.index(dense.sample.serial)
        found, expected = call.result[place].cpu().double(), right[-1]
        error = (found - expected).abs() / (1 + expected.abs())
        if not bool(error.max() <= dense.bound):
            element = int((error > dense.bound).nonzero()[0])
            kind = None if layer is None else str(dense.config.layers[layer])
            return FirstDifference(
                op=call.name,
                model=str(dense.role),
                layer=layer,
                kind=kind,
                tensor="result",
                row=row,
                live=True,
                slot=None,
                head=None,
                element=element,
                eager_bits=f"{float(expected[element]):.6g}",
                graph_bits=f"{float(found[element]):.6g}",
            )
    return None


def _ends(recorded: RecordedForward) -> Iterator[tuple[OpCall, int | None]]:
    """Yield the op for the first layer's input, the op that ends each layer, and the last one."""
    layer = 0
    linear = [call for call in recorded.eager_calls if call.name == "norm_linear"]
    for call in recorded.eager_calls:
        if call.name == "embed":
            yield call, None
        elif call.name == "gated_linear_add":
            yield call, layer
            layer += 1
    yield linear[-1], None
