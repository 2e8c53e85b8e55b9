"""A segment of a captured graph, on any device."""

from abc import ABC, abstractmethod

from paritybit.reference.ops import OpCall, Ops


class UncapturableError(RuntimeError):
    """Raised for an op that a graph cannot record."""


class Segment(ABC):
    """The device work between `begin` and `end`.

    `operations` are the ops that it called through the op interface. If `Ops.calls` is kept during
    the capture, a replay adds the segment's calls to it, with the inputs and results of the replay.
    """

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.operations: list[str] = []
        self.op_calls: list[OpCall] = []

    def begin(self) -> None:
        """Start to capture."""
        self.ops.log = self.operations
        self._first_call = len(self.ops.calls or ())
        self._begin()

    def end(self) -> None:
        """End the capture."""
        try:
            self._end()
        finally:
            self.ops.log = None
            self.op_calls = (self.ops.calls or [])[self._first_call :]

    def replay(self) -> None:
        """Run the captured work again in the same storages."""
        if self.ops.calls is not None:
            self.ops.calls += self.op_calls
        self._replay()

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    @abstractmethod
    def _replay(self) -> None: ...
