"""The op that only a graph runs, and that makes of the right rows an output that is not."""

from harness.explain.facts import FirstDifference
from harness.explain.first_difference import paired, results_of
from harness.explain.recorded import RecordedForward
from harness.lockstep.bits import bits, first_index, hex_bits


def further_op(recorded: RecordedForward) -> FirstDifference | None:
    """Return the first op without a counterpart whose live rows are not the eager output's.

    To be asked where no op differs that both worlds run. None if there is no such op.
    """
    for _, one, other in paired(recorded.eager_calls, recorded.run.calls):
        if one is not None or other.result is None:
            continue
        for result in results_of(other):
            for name, right in (recorded.eager_output or {}).items():
                held = result[: len(right)]
                if held.shape != right.shape or held.dtype != right.dtype:
                    continue
                different = bits(held) != bits(right)
                if different.any():
                    place = first_index(different)
                    return FirstDifference(
                        op=other.name,
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
