"""Captures one run of a function, as one graph or as segments with eager work between."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from paritybit.reference.ops import Ops
from paritybit.subjects.graphs.cuda import CudaSegment
from paritybit.subjects.graphs.segment import Segment
from paritybit.subjects.graphs.tape import TapeSegment

Result = TypeVar("Result")


class Capture(Generic[Result]):
    """One run of a function, captured as segments with eager work between them.

    `output` is the function's result. `kept` is anything else that the segments read, kept alive
    as long as they are. `memory_pool` is None on a CPU.
    """

    def __init__(self, ops: Ops, memory_pool: Any | None) -> None:
        self.ops = ops
        self.memory_pool = memory_pool
        self.segments: list[Segment] = []
        self.breaks: list[Callable[[], None]] = []
        self.output: Result
        self.kept: Any = None
        self._open: Segment | None = None

    def run(self, function: Callable[[], Result]) -> "Capture[Result]":
        """Capture a run of `function`, which may call `break_here`. Return this capture."""
        with self._stream():
            self._begin()
            try:
                self.output = function()
            finally:
                self._end()
        return self

    def break_here(self, eager: Callable[[], None]) -> None:
        """End the segment, run `eager` now and at every replay, and begin the next segment."""
        self._end()
        self.breaks.append(eager)
        eager()
        self._begin()

    def replay(self) -> None:
        """Replay the segments, and run the breaks between them."""
        self.segments[0].replay()
        for eager, segment in zip(self.breaks, self.segments[1:], strict=True):
            eager()
            segment.replay()

    @property
    def operations(self) -> list[str]:
        """The ops of all segments, in order, without those in breaks."""
        return [name for segment in self.segments for name in segment.operations]

    def _begin(self) -> None:
        if self.memory_pool is None:
            self._open = TapeSegment(self.ops)
        else:
            self._open = CudaSegment(self.ops, self.memory_pool)
        self.segments.append(self._open)
        self._open.begin()

    def _end(self) -> None:
        """End the open segment. There is none after a break that failed."""
        if self._open is not None:
            self._open.end()
        self._open = None

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """On CUDA, wait for all earlier work and run the body on a side stream."""
        if self.memory_pool is None:
            yield
            return
        torch.cuda.synchronize()
        with torch.cuda.stream(_side_stream()):
            yield
        torch.cuda.synchronize()


@cache
def _side_stream() -> torch.cuda.Stream:
    """Return the stream of all captures. A memory pool reuses its blocks on one stream only."""
    return torch.cuda.Stream()
