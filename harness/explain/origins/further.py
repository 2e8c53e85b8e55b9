"""The op that only a graph runs, and that makes a wrong output from right rows."""

from collections.abc import Iterator
from itertools import product

from paritybit.harness.explain.facts import FirstDifference
from paritybit.harness.explain.first_difference import paired, results_of
from paritybit.harness.explain.recorded import RecordedForward
from paritybit.harness.lockstep.bits import bits, first_index, hex_bits
from torch import Tensor


def further_op(recorded: RecordedForward) -> FirstDifference | None:
    """Return the first op without a counterpart whose live rows differ from the eager output.

    Call this only if no op that both worlds run differs. Returns None if there is no such op.
    """
    for op, name, held, right in _outputs_of_further_ops(recorded):
        different = bits(held) != bits(right)
        if different.any():
            place = first_index(different)
            return FirstDifference(
                op=op,
                model=None,
                layer=None,
                kind=None,
                tensor=name,
                row=place[0],
                live=True,
                slot=None,
                head=None,
                element=place[-1],
                eager_bits=hex_bits(right[place]),
                graph_bits=hex_bits(held[place]),
            )
    return None


def _outputs_of_further_ops(
    recorded: RecordedForward,
) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Yield the possible outputs of each op without a counterpart.

    Each is (op, name of the output, its live rows, the eager output), with equal shapes.
    """
    outputs = recorded.eager_output or {}
    for _, one, other in paired(recorded.eager_calls, recorded.run.calls):
        if one is not None or other.result is None:
            continue
        for result, (name, right) in product(results_of(other), outputs.items()):
            held = result[: len(right)]
            if held.shape == right.shape and held.dtype == right.dtype:
                yield other.name, name, held, right
