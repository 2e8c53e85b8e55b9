"""Graphs: a function's device work, recorded once and replayed into the same storages.

Python does not run again at a replay. Addresses and host scalars are baked in; a
branch taken at capture stays taken. `CudaGraph` is the real thing; `TapeGraph` has
the same semantics on a CPU, so that every property works without a GPU.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from reference.ops import Ops


class Graph(Protocol):
    """A captured function. `operations` are the ops it called through the op interface."""

    output: Tensor
    operations: list[str]

    def replay(self) -> None:
        """Run the captured work again; `output` then holds the result."""
        ...


class UncapturableError(RuntimeError):
    """An op that a graph cannot record."""


class CudaGraph:
    """A `torch.cuda.CUDAGraph` of `function`, in the memory pool shared by its world."""

    def __init__(self, function: Callable[[], Tensor], ops: Ops, memory_pool: Any) -> None:
        self.graph = torch.cuda.CUDAGraph()
        ops.log = []
        try:
            with torch.cuda.graph(self.graph, pool=memory_pool):
                self.output = function()
        finally:
            self.operations, ops.log = ops.log, None

    def replay(self) -> None:
        """Launch the graph."""
        self.graph.replay()


@dataclass(frozen=True)
class Call:
    """One recorded aten call. With `result`, the call's value is copied there afterwards."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Tensor | None = None


class TapeGraph:
    """The aten calls of one run of `function`, with their concrete tensors.

    A replay runs the calls into the storages of the recorded run.
    """

    def __init__(self, function: Callable[[], Tensor], ops: Ops) -> None:
        recorder = _Recorder()
        ops.log = []
        try:
            with recorder, _HostReads():
                self.output = function()
        finally:
            self.operations, ops.log = ops.log, None
        self.calls = recorder.calls

    def replay(self) -> None:
        """Run the tape."""
        for call in self.calls:
            value = call.function(*call.args, **call.kwargs)
            if call.result is not None:
                call.result.copy_(value)


class _Recorder(TorchDispatchMode):
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
