"""Graphs: a function's device work, recorded once and replayed into the same storages.

Python does not run again at a replay. Addresses and host scalars are baked in; a
branch taken at capture stays taken. On CUDA a graph is the real thing; on a CPU it is a
tape with the same semantics, so that every property works without a GPU.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from reference.ops import OpCall, Ops

Result = TypeVar("Result")


class Graph(Protocol):
    """Captured device work. `operations` are the ops it called through the op interface."""

    operations: list[str]

    def replay(self) -> None:
        """Run the captured work again, into the same storages."""
        ...


class UncapturableError(RuntimeError):
    """An op that a graph cannot record."""


class Witnessed:
    """The op calls of one segment, if `Ops.calls` was kept while it was captured.

    Their tensors are then never reused by the graph, so that after a replay each holds what
    its op was given, or gave; a replay while `Ops.calls` is kept adds the calls to it.
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


class CudaSegment:
    """A `torch.cuda.CUDAGraph` of what runs between `begin` and `end`."""

    def __init__(self, ops: Ops, memory_pool: Any) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.ops = ops
        self.memory_pool = memory_pool
        self.operations: list[str] = []
        self.witnessed = Witnessed(ops)

    def begin(self) -> None:
        """Capture from here on, on the current stream, which is not the default one."""
        self.ops.log = self.operations
        self.witnessed.begin()
        # A graph of another engine, destroyed by the collector just now, would spoil this one.
        self._collects = gc.isenabled()
        gc.disable()
        self.graph.capture_begin(pool=self.memory_pool)

    def end(self) -> None:
        """Capture no more."""
        try:
            self.graph.capture_end()
        finally:
            self.ops.log = None
            self.witnessed.end()
            if self._collects:
                gc.enable()

    def replay(self) -> None:
        """Launch the graph."""
        self.witnessed.replay()
        self.graph.replay()


@dataclass(frozen=True)
class Call:
    """One recorded aten call. With `result`, the call's value is copied there afterwards."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Tensor | None = None


class TapeSegment:
    """The aten calls made between `begin` and `end`, with their concrete tensors.

    A replay runs the calls into the storages of the recorded run.
    """

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.operations: list[str] = []
        self.witnessed = Witnessed(ops)
        self._recorder, self._reads = _Recorder(), _HostReads()

    @property
    def calls(self) -> list[Call]:
        """What was recorded."""
        return self._recorder.calls

    def begin(self) -> None:
        """Record from here on."""
        self.ops.log = self.operations
        self.witnessed.begin()
        self._recorder.__enter__()  # type: ignore[no-untyped-call]
        self._reads.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Record no more."""
        self._reads.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._recorder.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.ops.log = None
        self.witnessed.end()

    def replay(self) -> None:
        """Run the tape."""
        self.witnessed.replay()
        for call in self.calls:
            value = call.function(*call.args, **call.kwargs)
            if call.result is not None:
                call.result.copy_(value)


class Capture(Generic[Result]):
    """One run of a function, captured as segments with eager work between them.

    `output` is what the function returned; it, or what else keeps a tensor of one segment
    for another, must be kept for as long as the segments are replayed. `memory_pool` is
    None on a CPU.
    """

    def __init__(self, ops: Ops, memory_pool: Any | None) -> None:
        self.ops = ops
        self.memory_pool = memory_pool
        self.segments: list[Graph] = []
        self.breaks: list[Callable[[], None]] = []
        self.output: Result
        self._open: CudaSegment | TapeSegment | None = None

    def run(self, function: Callable[[], Result]) -> "Capture[Result]":
        """Capture a run of `function`, which may break it; return this capture."""
        with self._stream():
            self._begin()
            try:
                self.output = function()
            finally:
                self._end()
        return self

    def break_here(self, eager: Callable[[], None]) -> None:
        """End the segment, run `eager`, now and at every replay, and begin the next one."""
        self._end()
        self.breaks.append(eager)
        eager()
        self._begin()

    def replay(self) -> None:
        """Run the segments again, and the breaks between them."""
        self.segments[0].replay()
        for eager, segment in zip(self.breaks, self.segments[1:], strict=True):
            eager()
            segment.replay()

    @property
    def operations(self) -> list[str]:
        """The ops of all segments, in order; what a break runs is not among them."""
        return [name for segment in self.segments for name in segment.operations]

    def _begin(self) -> None:
        if self.memory_pool is None:
            self._open = TapeSegment(self.ops)
        else:
            self._open = CudaSegment(self.ops, self.memory_pool)
        self.segments.append(self._open)
        self._open.begin()

    def _end(self) -> None:
        """End the segment that is open; after a break that failed, none is."""
        if self._open is not None:
            self._open.end()
        self._open = None

    @contextmanager
    def _stream(self) -> Iterator[None]:
        """Give a side stream on CUDA, which a capture needs, with all earlier work done."""
        if self.memory_pool is None:
            yield
            return
        torch.cuda.synchronize()
        with torch.cuda.stream(_side_stream()):
            yield
        torch.cuda.synchronize()


@cache
def _side_stream() -> torch.cuda.Stream:
    """Return the stream of all captures: blocks of a memory pool are reused on one stream."""
    return torch.cuda.Stream()


class UncompiledMode(TorchDispatchMode):
    """A dispatch mode of a program that compiles nothing."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To say that it is skipped, torch would import its compiler, which takes seconds.
        return False


class _Recorder(UncompiledMode):
    """Records every aten call made while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if _not_capturable(func, args):
            raise UncapturableError(f"{name} cannot be recorded in a graph")
        value = func(*args, **kwargs)
        if func._schema.is_mutable:
            self.calls.append(Call(func, args, kwargs))
        elif name in ALLOCATIONS:  # Memory is had once; no replay clears it.
            pass
        elif not _is_view(value, args):  # A view is an alias of a storage the tape knows.
            if not isinstance(value, Tensor):
                raise UncapturableError(f"{name} does not return one tensor")
            self.calls.append(_call_into(value, func, args, kwargs))
        return value


class _HostReads(TorchFunctionMode):
    """Refuses the reads into Python that never reach a dispatch mode."""

    REFUSED = frozenset(
        {Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__bool__}
    )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in self.REFUSED:
            raise UncapturableError(f"Tensor.{func.__name__} cannot be recorded in a graph")
        return func(*args, **(kwargs or {}))


NOT_CAPTURABLE = frozenset(
    {
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
        torch.Tag.nondeterministic_seeded,
    }
)
"""Values read back, shapes that depend on values, random draws: no graph could hold them."""

INDEXING = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)

UNTAGGED = frozenset({"aten::lift_fresh", "aten::repeat_interleave"})
"""Further calls that no graph could hold: tensors of host data, shapes that follow values."""

ALLOCATIONS = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}
)
"""Calls that give memory as it is."""

MASKS = (torch.bool, torch.uint8)


def _is_view(value: Any, args: tuple[Any, ...]) -> bool:
    """Whether every tensor of `value` lies in the storage of an argument.

    Asked of the storages: what a schema calls an alias may be a copy, as `to` is.
    """
    known = {each.untyped_storage()._cdata for each in args if isinstance(each, Tensor)}
    values = [value] if isinstance(value, Tensor) else value
    return isinstance(values, list | tuple) and all(
        isinstance(each, Tensor) and each.untyped_storage()._cdata in known for each in values
    )


def _not_capturable(func: Any, args: tuple[Any, ...]) -> bool:
    if func.overloadpacket in INDEXING:  # Its work depends on values for a mask alone.
        return any(each is not None and each.dtype in MASKS for each in args[1])
    return bool(NOT_CAPTURABLE & set(func.tags)) or func._schema.name in UNTAGGED


def _call_into(value: Tensor, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return the call in the form that writes the storage of its recorded `value`."""
    out = _out_overload(func)
    if out is None:
        return Call(func, args, kwargs, value)
    accepted = {each.name for each in out._schema.arguments if each.kwarg_only}
    kept = {name: each for name, each in kwargs.items() if name in accepted} | {"out": value}
    try:  # torch's own binding of the call, where it takes these arguments, costs half as much.
        binding = getattr(torch, func.overloadpacket.__name__)
        binding(*args, **kept)
    except (AttributeError, TypeError):
        binding = out
    return Call(binding, args, kept)


@cache
def _out_overload(func: Any) -> Any | None:
    """Return the overload of `func` that takes the same arguments and writes into `out=`."""
    wanted = _positional(func)
    for name in func.overloadpacket.overloads():
        candidate = getattr(func.overloadpacket, name)
        written = [
            each.name
            for each in candidate._schema.arguments
            if each.alias_info and each.alias_info.is_write
        ]
        if written == ["out"] and wanted and _positional(candidate) == wanted:
            return candidate
    return None


def _positional(func: Any) -> list[tuple[str, str]]:
    arguments = func._schema.arguments
    return [(each.name, str(each.type)) for each in arguments if not each.kwarg_only]
