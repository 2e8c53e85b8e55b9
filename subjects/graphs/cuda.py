"""Graphs on a GPU: one `torch.cuda.CUDAGraph` per segment."""

import gc
from typing import Any

import torch
from paritybit.reference.ops import Ops
from paritybit.subjects.graphs.op_calls import SegmentCalls


class CudaSegment:
    """A `torch.cuda.CUDAGraph` of the work between `begin` and `end`.

    `memory_pool` is the handle of the pool for its tensors.
    """

    def __init__(self, ops: Ops, memory_pool: Any) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.ops = ops
        self.memory_pool = memory_pool
        self.operations: list[str] = []
        self.op_calls = SegmentCalls(ops)

    def begin(self) -> None:
        """Start to capture on the current stream, which must not be the default stream."""
        self.ops.log = self.operations
        self.op_calls.begin()
        # If the collector destroyed another graph now, the capture would fail.
        self._collects = gc.isenabled()
        gc.disable()
        self.graph.capture_begin(pool=self.memory_pool)

    def end(self) -> None:
        """End the capture."""
        try:
            self.graph.capture_end()
        finally:
            self.ops.log = None
            self.op_calls.end()
            if self._collects:
                gc.enable()

    def replay(self) -> None:
        """Launch the graph."""
        self.op_calls.replay()
        self.graph.replay()
