"""Graphs on a CPU: a tape of aten calls with their concrete tensors.

A tape keeps a CUDA graph's semantics: a replay runs no Python of the recorded function,
writes into the same storages, and what a graph could not hold is refused while recording.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from paritybit.reference.ops import Ops
from paritybit.subjects.graphs.dispatch import ALLOCATIONS, ALLOCATORS, UncompiledMode
from paritybit.subjects.graphs.op_calls import SegmentCalls
from paritybit.subjects.graphs.protocol import UncapturableError
from torch import Tensor
from torch.overrides import TorchFunctionMode

NOT_CAPTURABLE = frozenset(
    {
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
        torch.Tag.nondeterministic_seeded,
    }
)
"""Values read back, shapes that depend on values, random draws: no graph could hold them."""

UNTAGGED = frozenset({"aten::lift_fresh", "aten::repeat_interleave"})
"""Calls that no graph could hold and that torch does not tag: tensors made of host data, and
shapes that depend on values."""

SEVERAL = frozenset({"aten::max", "aten::sort", "aten::topk"})
"""Calls that return several tensors, of shapes that no value decides."""

CONVERSIONS = frozenset({"aten::to", "aten::_to_copy"})
"""Calls whose new tensor is the first argument in another form, which a copy into it gives too."""

INDEXING = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)

MASKS = (torch.bool, torch.uint8)

TOLD_BY_RESULT = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format"})
"""Keyword arguments that need not be given where the result is."""


METHODS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.copy_.default: Tensor.copy_,
    torch.ops.aten.index_copy_.default: Tensor.index_copy_,
}
"""Torch's own methods, which cost less to call than the overloads that they are."""


class Call(NamedTuple):
    """One recorded aten call. With `result`, the call's value is copied there afterwards."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Tensor | None = None

    def bound(self) -> Callable[[], Any]:
        """Return what makes the call when it is called itself."""
        run = partial(self.function, *self.args, **self.kwargs)
        if self.result is None:
            return run
        result = self.result
        return lambda: result.copy_(run())


class TapeSegment:
    """The aten calls made between `begin` and `end`, with their concrete tensors.

    A replay runs the calls into the storages of the recorded run.
    """

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.operations: list[str] = []
        self.op_calls = SegmentCalls(ops)
        self._recorder, self._reads = _Recorder(), _HostReads()
        self._bound: list[Callable[[], Any]] = []

    @property
    def calls(self) -> list[Call]:
        """What was recorded."""
        return self._recorder.calls

    def begin(self) -> None:
        """Record from here on."""
        self.ops.log = self.operations
        self.op_calls.begin()
        self._recorder.__enter__()  # type: ignore[no-untyped-call]
        self._reads.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Record no more."""
        self._reads.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._recorder.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.ops.log = None
        self.op_calls.end()
        self._bound = [call.bound() for call in self.calls]

    def replay(self) -> None:
        """Run the tape."""
        self.op_calls.replay()
        for run in self._bound:
            run()


class _Recorder(UncompiledMode):
    """Records every aten call made while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        traits = _traits(func)
        if traits.refused or (traits.indexes and _by_mask(args[1])):
            raise UncapturableError(f"{traits.name} cannot be recorded in a graph")
        value = traits.run(*args, **kwargs)
        if traits.leaves_nothing:
            pass
        elif traits.mutates:
            self.calls.append(Call(METHODS.get(func, func), args, kwargs))
        elif not _is_view(value, args):  # A view is an alias of a storage the tape knows.
            if isinstance(value, Tensor):
                self.calls.append(_call_into(value, func, traits, args, kwargs))
            elif traits.name in SEVERAL:
                self.calls.append(Call(_copying(func, value), args, kwargs))
            else:
                raise UncapturableError(f"{traits.name} does not return one tensor")
        return value


class _HostReads(TorchFunctionMode):
    """Refuses the reads into Python that never reach a dispatch mode.

    Modes that were entered before it see allocations alone: to call a mode for each of torch's
    functions takes longer than the function.
    """

    REFUSED = frozenset(
        {Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__bool__}
    )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in self.REFUSED:
            raise UncapturableError(f"Tensor.{func.__name__} cannot be recorded in a graph")
        if func in ALLOCATORS:
            return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            return func(*args, **(kwargs or {}))


def _is_view(value: Any, args: tuple[Any, ...]) -> bool:
    """Whether every tensor of `value` lies in the storage of an argument.

    The storages decide, not the schema: what a schema calls an alias may be a copy, as `to` is.
    """
    known = {one.untyped_storage()._cdata for one in args if isinstance(one, Tensor)}
    if isinstance(value, Tensor):
        return value.untyped_storage()._cdata in known
    return isinstance(value, list | tuple) and all(
        isinstance(part, Tensor) and part.untyped_storage()._cdata in known for part in value
    )


def _copying(func: Any, results: Sequence[Tensor]) -> Callable[..., None]:
    """Return `func`, whose several values are copied to the recorded `results`."""

    def called(*args: Any, **kwargs: Any) -> None:
        for result, value in zip(results, func(*args, **kwargs), strict=True):
            result.copy_(value)

    return called


@dataclass(frozen=True)
class _Traits:
    """What a call of one overload is to a tape, whatever its arguments.

    A replay needs nothing of a call that `leaves_nothing`: a span of the profiler, and memory that
    is allocated once, at the capture, and that no replay clears. `form` writes into `out=`.
    """

    name: str
    run: Callable[..., Any]
    refused: bool
    indexes: bool
    mutates: bool
    leaves_nothing: bool
    converts: bool
    form: "_OutForm | None"


@cache
def _traits(func: Any) -> _Traits:
    """Return the traits of an overload, which torch makes once and never changes."""
    name, indexes = func._schema.name, func.overloadpacket in INDEXING
    refused = bool(NOT_CAPTURABLE & set(func.tags)) or name in UNTAGGED
    if func is torch.ops.aten.repeat_interleave.self_int:  # Its shape follows from a number.
        refused = False
    return _Traits(
        name,
        func._op,
        refused and not indexes,
        indexes,
        mutates=func._schema.is_mutable,
        leaves_nothing=name in ALLOCATIONS or name.startswith("profiler::"),
        converts=name in CONVERSIONS,
        form=_out_form(func),
    )


def _by_mask(indices: Sequence[Tensor | None]) -> bool:
    """Whether an index is a mask: what is read or written then depends on values."""
    return any(index is not None and index.dtype in MASKS for index in indices)


def _call_into(
    value: Tensor, func: Any, traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    """Return the call in the form that writes the storage of its recorded `value`."""
    if traits.converts:
        return Call(Tensor.copy_, (value, args[0]), {})
    form = traits.form
    if form is None or (kwargs and kwargs.keys() - form.accepted - TOLD_BY_RESULT):
        return Call(func, args, kwargs, value)
    kept = {name: given for name, given in kwargs.items() if name in form.accepted}
    kept["out"] = value
    return Call(_fastest_binding(form, args, kept), args, kept)


def _fastest_binding(
    form: "_OutForm", args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return torch's own function of the op if it takes these arguments, else the overload.

    Torch's function costs half as much to call, and a tape is replayed often. No schema says
    which arguments it takes, so that it is called once with arguments of these types: it writes
    what its result already holds.
    """
    if form.binding is None:
        return form.overload
    types = *_types(args), *kwargs
    if types not in form.fastest:
        try:
            form.binding(*args, **kwargs)
            form.fastest[types] = form.binding
        except (AttributeError, TypeError):
            form.fastest[types] = form.overload
    return form.fastest[types]


def _types(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the types of some arguments, and those of the items of lists."""
    types = tuple(map(type, values))
    if list not in types and tuple not in types:
        return types
    return tuple(_types(one) if isinstance(one, list | tuple) else type(one) for one in values)


@dataclass(frozen=True)
class _OutForm:
    """The overload of an op that writes into `out=`, which keywords it accepts besides.

    `binding` is torch's own function of the op, if there is one. `fastest` is what to call, by
    the types of the arguments and the names of keywords.
    """

    overload: Callable[..., Any]
    accepted: frozenset[str]
    binding: Callable[..., Any] | None
    fastest: dict[Any, Callable[..., Any]] = field(default_factory=dict)


def _out_form(func: Any) -> _OutForm | None:
    """Return the overload of `func` that takes the same arguments and writes into `out=`."""
    wanted = _positional(func)
    for name in func.overloadpacket.overloads():
        candidate = getattr(func.overloadpacket, name)
        arguments = candidate._schema.arguments
        written = [one.name for one in arguments if one.alias_info and one.alias_info.is_write]
        if written == ["out"] and wanted and _positional(candidate) == wanted:
            accepted = frozenset(one.name for one in arguments if one.kwarg_only)
            return _OutForm(candidate, accepted, _own_function(func.overloadpacket.__name__))
    return None


def _own_function(name: str) -> Callable[..., Any] | None:
    """Return torch's own function of an op, if there is one."""
    found: Callable[..., Any] | None = getattr(torch, name, getattr(torch._C._nn, name, None))
    return found


def _positional(func: Any) -> list[tuple[str, str]]:
    arguments = func._schema.arguments
    return [
        (argument.name, str(argument.type)) for argument in arguments if not argument.kwarg_only
    ]
