"""The piecewise runner: prefill by graphs of the pieces of the model between two attention ops.

sglang's compiler cuts the model ahead of time. Here the pieces are those of one captured forward,
as in the breakable runner. What the two runners differ in is the owner of their static buffers.
"""

from paritybit.subjects.runners.prefill import PrefillRunner


class PiecewiseRunner(PrefillRunner):
    """Prefill over static buffers that it shares with other runners."""

    name = "piecewise"
