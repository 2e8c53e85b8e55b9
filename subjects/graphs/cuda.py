"""Graphs on a GPU: one `torch.cuda.CUDAGraph` per segment."""

import gc
from typing import Any

import torch
from paritybit.reference.ops import Ops
from paritybit.subjects.graphs.segment import Segment


class CudaSegment(Segment):
    """A `torch.cuda.CUDAGraph`. `memory_pool` is the handle of the pool for its tensors.

    The current stream of a capture must not be the default stream.
    """

    def __init__(self, ops: Ops, memory_pool: Any) -> None:
        super().__init__(ops)
        self.graph = torch.cuda.CUDAGraph()
        self.memory_pool = memory_pool

    def _begin(self) -> None:
        # If the collector destroyed another graph now, the capture would fail.
        self._collects = gc.isenabled()
        gc.disable()
        self.graph.capture_begin(pool=self.memory_pool)

    def _end(self) -> None:
        try:
            self.graph.capture_end()
        finally:
            if self._collects:
                gc.enable()

    def _replay(self) -> None:
        self.graph.replay()
