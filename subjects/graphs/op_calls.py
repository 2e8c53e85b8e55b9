"""The op calls of one captured segment, repeated in the record of calls at every replay."""

from paritybit.reference.ops import OpCall, Ops


class SegmentCalls:
    """The op calls of one segment, if `Ops.calls` was kept while it was captured.

    Their tensors are then never reused by the graph, so that after a replay every call's
    tensors hold what its op was given, and gave. A replay while `Ops.calls` is kept adds the
    calls to it.
    """

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.calls: list[OpCall] = []

    def begin(self) -> None:
        """Begin the segment."""
        self._first = len(self.ops.calls or ())

    def end(self) -> None:
        """End the segment."""
        self.calls = (self.ops.calls or [])[self._first :]

    def replay(self) -> None:
        """Add the calls of a replay to those that are kept."""
        if self.ops.calls is not None:
            self.ops.calls += self.calls
