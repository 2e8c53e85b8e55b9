"""Repeats the op calls of a captured segment in `Ops.calls` at every replay."""

from paritybit.reference.ops import OpCall, Ops


class SegmentCalls:
    """The op calls of one segment. Empty unless `Ops.calls` was kept during the capture.

    The graph never reuses the tensors of these calls, so after a replay they hold the inputs and
    the result of each op. A replay adds the calls to `Ops.calls`, if it is kept.
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
        """Add the calls to `Ops.calls`, if it is kept."""
        if self.ops.calls is not None:
            self.ops.calls += self.calls
