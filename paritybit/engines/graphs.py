"""A graph on a CPU for an engine that asks torch for a CUDA graph.

Between two calls that a tape cannot hold (a Triton kernel), what ran is on a tape; the
calls are kept with the tensors they were given. A replay runs both in order: Python of
the engine does not run again.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from paritybit.reference.ops import Ops
from paritybit.subjects.graphs.tape import TapeSegment

NO_POOL = (0, 0)
"""A handle of a pool of graphs' memory."""


class CpuGraph:
    """What stands for `torch.cuda.CUDAGraph` on a CPU."""

    recording: "CpuGraph | None" = None
    ops: Ops

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.parts: list[Callable[[], Any]] = []
        self._open: TapeSegment | None = None

    def capture_begin(self, *arguments: Any, **named: Any) -> None:
        """Record from here on, as a part of what a caller captures in several graphs."""
        CpuGraph.recording = self
        self.begin()

    def capture_end(self) -> None:
        """Record no more."""
        self.end()
        CpuGraph.recording = None

    @property
    def open(self) -> bool:
        """Whether calls are recorded now. They are not within one that is kept whole."""
        return self._open is not None

    def begin(self) -> None:
        """Record from here on."""
        self._open = TapeSegment(self.ops)
        self._open.begin()

    def end(self) -> None:
        """Keep what was recorded since `begin`."""
        if self._open is not None:
            self._open.end()
            self.parts.append(self._open.replay)
        self._open = None

    def reset(self) -> None:
        """Forget what was recorded."""
        self.parts.clear()

    def pool(self) -> tuple[int, int]:
        """Return the handle of a pool of memory, of which a CPU has none."""
        return NO_POOL

    def replay(self) -> None:
        """Run what was recorded, into the same storages."""
        for part in self.parts:
            part()


@contextmanager
def recording(cuda_graph: CpuGraph, *arguments: Any, **settings: Any) -> Iterator[None]:
    """Stand for `torch.cuda.graph`."""
    cuda_graph.capture_begin()
    try:
        yield
    finally:
        cuda_graph.capture_end()


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a recording graph keep each call of `function` whole, as it would a kernel's launch.

    Calls within one that is kept whole are a part of it.
    """

    def called(*arguments: Any, **named: Any) -> Any:
        graph = CpuGraph.recording
        if graph is None or not graph.open:
            return function(*arguments, **named)
        graph.end()
        call = partial(function, *arguments, **named)
        value = call()
        graph.parts.append(call)
        graph.begin()
        return value

    return called


class Event:
    """Stand for `torch.cuda.Event`: on a CPU all work is done when it is asked for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Take what an event is made of."""

    def record(self, *arguments: Any) -> None:
        """Do nothing."""

    def wait(self, *arguments: Any) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return that all work is done."""
        return True

    def elapsed_time(self, other: "Event") -> float:
        """Return the milliseconds between two events: all work takes none."""
        return 0.0


def implement_on_cpu(namespace: str) -> None:
    """Let the operators that a namespace registers for CUDA be a CPU's from here on."""
    implement: Any = torch.library.Library.impl

    def implemented(library: Any, name: Any, function: Any, key: str = "", **named: Any) -> None:
        moved = library.ns == namespace and key == "CUDA"
        implement(library, name, function, "CPU" if moved else key, **named)

    torch.library.Library.impl = implemented  # type: ignore[method-assign,assignment]


def as_written(function: Any = None, **settings: Any) -> Any:
    """Stand for `torch.compile`: give the function back, or what does so with one."""
    return as_written if function is None else function


def emulate(ops: Ops) -> None:
    """Give torch's CPU module what an engine needs of a device module to capture graphs.

    Some runners ask torch's CUDA module for it, whatever the device. What an engine compiles
    for a GPU runs as it is written.
    """
    torch.compile = torch.compiler.disable = as_written  # type: ignore[assignment]
    CpuGraph.ops = ops
    torch.cuda.CUDAGraph = CpuGraph  # type: ignore[assignment,misc]
    torch.cuda.graph = recording  # type: ignore[assignment,misc]
    torch.cuda.synchronize = lambda *arguments: None
    torch.accelerator.empty_cache = lambda: None
    stream = SimpleNamespace(wait_stream=lambda other: None, wait_event=lambda event: None)
    for name, value in {
        "graph": recording,
        "graph_pool_handle": lambda: NO_POOL,
        "Event": Event,
        "is_current_stream_capturing": lambda: CpuGraph.recording is not None,
        "current_stream": lambda *arguments: stream,
    }.items():
        setattr(torch.cpu, name, value)
    torch.cuda.current_stream = torch.cpu.current_stream  # type: ignore[assignment]


class Stream:
    """Stand for `torch.cuda.Stream`: on a CPU all work is done when it is asked for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Take what a stream is made of."""

    def wait_stream(self, *others: Any) -> None:
        """Do nothing."""

    def wait_event(self, *events: Any) -> None:
        """Do nothing."""

    def record_event(self, *events: Any) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""


STREAM = Stream()


def emulate_streams() -> None:
    """Give torch's CUDA module streams, events and a handle of memory, as engines ask for them."""
    torch.cuda.Stream = Stream  # type: ignore[assignment,misc]
    torch.cuda.Event = Event  # type: ignore[assignment,misc]
    torch.cuda.graph_pool_handle = lambda: NO_POOL  # type: ignore[assignment,return-value]


def unpin_memory() -> None:
    """Let memory that is asked to be pinned be memory: nothing can pin it without a GPU."""
    for name in ("zeros", "empty", "tensor"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = torch.Tensor.clone  # type: ignore[method-assign,assignment]


def unpinned(made: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes the same tensors in memory that is not pinned."""

    def making(*arguments: Any, pin_memory: bool = False, **named: Any) -> Any:
        return made(*arguments, **named)

    return making


def emulate_device(ops: Ops) -> None:
    """Emulate graphs, streams, pinned memory and what else a CUDA device is asked for.

    Graphs keep the launches of Triton's interpreter whole.
    """
    emulate(ops)
    emulate_streams()
    unpin_memory()
    torch.cuda.get_device_capability = lambda *device: (9, 0)
    launches = importlib.import_module("triton.runtime.interpreter").GridExecutor
    launches.__call__ = whole(launches.__call__)
