"""CUDA graphs on a CPU.

A graph is a list of tapes of torch ops, and of calls that a tape cannot record, such as the launch
of a Triton kernel. A replay runs them in order, without Python code of the engine.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from paritybit.reference.ops import Ops
from paritybit.subjects.graphs.tape import TapeSegment

from paritybit.connectors.failures import CAPTURED, engine_path
from paritybit.connectors.hooking import callers
from paritybit.watch.stacks import line_of

Result = TypeVar("Result")

NO_POOL = (0, 0)


class CpuGraph:
    """Stands in for `torch.cuda.CUDAGraph` on a CPU."""

    recording: "CpuGraph | None" = None
    ops: Ops

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.parts: list[Callable[[], Any]] = []
        self._open: TapeSegment | None = None

    def capture_begin(self, *arguments: Any, **named: Any) -> None:
        CpuGraph.recording = self
        self.begin()

    def capture_end(self) -> None:
        self.end()
        CpuGraph.recording = None

    @property
    def open(self) -> bool:
        """Whether ops are recorded now."""
        return self._open is not None

    def begin(self) -> None:
        self._open = TapeSegment(self.ops)
        self._open.begin()

    def end(self) -> None:
        if self._open is not None:
            self._open.end()
            self.parts.append(self._open.replay)
        self._open = None

    def reset(self) -> None:
        self.parts.clear()

    def pool(self) -> tuple[int, int]:
        return NO_POOL

    def replay(self) -> None:
        for part in self.parts:
            part()


@contextmanager
def recording(cuda_graph: CpuGraph, *arguments: Any, **settings: Any) -> Iterator[None]:
    """Stand in for `torch.cuda.graph`."""
    cuda_graph.capture_begin()
    try:
        yield
    finally:
        cuda_graph.capture_end()


def whole(function: Callable[..., Result], *, returns: bool = False) -> Callable[..., Result]:
    """Make a recording graph keep each call of `function` as one step, like a kernel launch.

    With `returns`, a replay writes the result to the tensor that the call returned while recording.
    An error of a replay has a note with the line of the engine that made the call.
    """

    def called(*arguments: Any, **named: Any) -> Any:
        graph = CpuGraph.recording
        if graph is None or not graph.open:
            return function(*arguments, **named)
        graph.end()
        lines = (
            line_of(path, frame.f_lineno, frame.f_code)
            for frame in callers()
            if (path := engine_path(frame.f_code.co_filename)) is not None
        )
        line = next(lines, "a line that is not known")

        def call() -> Any:
            try:
                return function(*arguments, **named)
            except Exception as error:
                error.add_note(CAPTURED + line)
                raise

        value: Any = call()
        graph.parts.append((lambda: value.copy_(call())) if returns else call)
        graph.begin()
        return value

    return called


COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all_single", "broadcast"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_gather_single", "reduce_scatter_single"),
)
"""Functions of torch that run on several ranks, also by the names of newer releases."""


def keep_collectives() -> None:
    """Make a recording graph keep each collective of several ranks as one step."""
    for name in COLLECTIVES:
        if hasattr(torch.distributed, name):
            setattr(torch.distributed, name, whole(getattr(torch.distributed, name)))


class CpuEvent:
    """Stands in for `torch.cuda.Event`. On a CPU, all work is complete immediately."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def record(self, *arguments: Any) -> None:
        pass

    wait = synchronize = record

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "CpuEvent") -> float:
        return 0.0


class CpuStream:
    """Stands in for `torch.cuda.Stream`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def wait_stream(self, *others: Any) -> None:
        pass

    wait_event = record_event = synchronize = wait_stream


STREAM = CpuStream()


def implement_on_cpu(namespace: str) -> None:
    """Register the operators that a namespace implements for CUDA on the CPU from now on."""
    implement: Any = torch.library.Library.impl

    def implemented(library: Any, name: Any, function: Any, key: str = "", **named: Any) -> None:
        moved = library.ns == namespace and key == "CUDA"
        implement(library, name, function, "CPU" if moved else key, **named)

    torch.library.Library.impl = implemented  # type: ignore[method-assign,assignment]


def as_written(function: Any = None, **settings: Any) -> Any:
    """Stand in for `torch.compile`: return the function, or a decorator that does."""
    return as_written if function is None else function


def emulate(ops: Ops) -> None:
    """Add graphs, streams and events to torch's CPU and CUDA modules, and compile nothing."""
    held: Any = torch
    held.compile = held.compiler.disable = as_written
    CpuGraph.ops = ops
    held.cuda.CUDAGraph, held.cuda.Stream = CpuGraph, CpuStream
    held.cuda.synchronize = lambda *arguments: None
    held.accelerator.empty_cache = lambda: None
    held.cpu.is_current_stream_capturing = lambda: CpuGraph.recording is not None
    for module in (held.cuda, held.cpu):
        module.graph, module.Event = recording, CpuEvent
        module.graph_pool_handle = lambda: NO_POOL
        module.current_stream = lambda *arguments, **named: STREAM


def unpin_memory() -> None:
    """Replace pinned memory by ordinary memory, because pinning needs a GPU."""
    for name in ("arange", "empty", "full", "ones", "tensor", "zeros"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = torch.Tensor.clone  # type: ignore[method-assign,assignment]


def unpinned(made: Callable[..., Any]) -> Callable[..., Any]:
    """Return a factory for tensors in ordinary memory."""

    def making(*arguments: Any, pin_memory: bool = False, **named: Any) -> Any:
        return made(*arguments, **named)

    return making


def emulate_device(ops: Ops) -> None:
    """Emulate a CUDA device. Graphs keep each launch of Triton's interpreter as one step."""
    emulate(ops)
    unpin_memory()
    torch.cuda.get_device_capability = lambda *device: (9, 0)
    launches = importlib.import_module("triton.runtime.interpreter").GridExecutor
    launches.__call__ = whole(launches.__call__)
