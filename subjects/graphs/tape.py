"""Graphs on a CPU: a tape of aten calls with their concrete tensors.

A tape has the semantics of a CUDA graph. A replay runs no Python of the recorded function and
writes into the same storages. Recording fails on anything that a graph could not contain, except
a read into Python by a function that was taken from `Tensor` before.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from typing import Any, NamedTuple

import torch
from paritybit.reference.ops import Ops
from paritybit.subjects.graphs.dispatch import ALLOCATIONS, HOST_READS, UncompiledMode, replaced
from paritybit.subjects.graphs.op_calls import SegmentCalls
from paritybit.subjects.graphs.protocol import UncapturableError
from torch import Tensor

NOT_CAPTURABLE = frozenset(
    {
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
        torch.Tag.nondeterministic_seeded,
    }
)
"""Values that the host reads, shapes that depend on values, and random draws."""

UNTAGGED = frozenset({"aten::lift_fresh", "aten::repeat_interleave"})
"""Further calls that no graph can contain: tensors from host data, shapes from values."""

SEVERAL = frozenset({"aten::max", "aten::sort", "aten::topk"})
"""Calls that return several tensors whose shapes do not depend on values."""

CONVERSIONS = frozenset({"aten::to", "aten::_to_copy"})
"""Calls that convert their first argument, as a copy into the result does."""

INDEXING = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)

MASKS = (torch.bool, torch.uint8)

TOLD_BY_RESULT = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format"})
"""Keyword arguments that the result tensor determines."""


METHODS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.copy_.default: Tensor.copy_,
    torch.ops.aten.index_copy_.default: Tensor.index_copy_,
}
"""Torch methods that are cheaper to call than the equivalent overloads."""


class Call(NamedTuple):
    """One recorded aten call. If `result` is set, the call's value is then copied there."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Tensor | None = None

    def bound(self) -> Callable[[], Any]:
        """Return a function that makes the call."""
        run = partial(self.function, *self.args, **self.kwargs)
        if self.result is None:
            return run
        result = self.result
        return lambda: result.copy_(run())


class TapeSegment:
    """The aten calls between `begin` and `end`, with their concrete tensors.

    A replay runs the calls into the storages of the recorded run.
    """

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.operations: list[str] = []
        self.op_calls = SegmentCalls(ops)
        self._recorder, self._recording = _Recorder(), ExitStack()
        self._bound: list[Callable[[], Any]] = []

    @property
    def calls(self) -> list[Call]:
        """The recorded calls."""
        return self._recorder.calls

    def begin(self) -> None:
        """Start to record."""
        self.ops.log = self.operations
        self.op_calls.begin()
        self._recording.enter_context(self._recorder)
        self._recording.enter_context(replaced(HOST_READS, _refused))

    def end(self) -> None:
        """Stop recording."""
        self._recording.close()
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
        elif not _is_view(value, args):  # Its storage is an argument's.
            if isinstance(value, Tensor):
                self.calls.append(_call_into(value, func, traits, args, kwargs))
            elif traits.name in SEVERAL:
                self.calls.append(Call(_copying(func, value), args, kwargs))
            else:
                raise UncapturableError(f"{traits.name} does not return one tensor")
        return value


def _refused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises, in place of one that no graph can contain."""

    @wraps(function)
    def refuse(*_: Any, **__: Any) -> None:
        raise UncapturableError(f"Tensor.{function.__name__} cannot be recorded in a graph")

    return refuse


def _is_view(value: Any, args: tuple[Any, ...]) -> bool:
    """Whether every tensor of `value` shares the storage of an argument.

    Compares storages, because a schema also calls a possible copy an alias, as for `to`.
    """
    known = {one.untyped_storage()._cdata for one in args if isinstance(one, Tensor)}
    if isinstance(value, Tensor):
        return value.untyped_storage()._cdata in known
    return isinstance(value, list | tuple) and all(
        isinstance(part, Tensor) and part.untyped_storage()._cdata in known for part in value
    )


def _copying(func: Any, results: Sequence[Tensor]) -> Callable[..., None]:
    """Return a function that calls `func` and copies its values to the recorded `results`."""

    def called(*args: Any, **kwargs: Any) -> None:
        for result, value in zip(results, func(*args, **kwargs), strict=True):
            result.copy_(value)

    return called


@dataclass(frozen=True)
class _Traits:
    """How a tape treats calls of one overload.

    A replay skips a call that `leaves_nothing`: a span of the profiler, or an allocation, whose
    memory is allocated once at capture and never cleared. `form` is the overload with `out=`.
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
    """Return the traits of an overload. Torch never changes overloads."""
    name, indexes = func._schema.name, func.overloadpacket in INDEXING
    refused = bool(NOT_CAPTURABLE & set(func.tags)) or name in UNTAGGED
    if func is torch.ops.aten.repeat_interleave.self_int:  # Its shape depends on a number only.
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
    """Whether an index is a mask. The elements it selects then depend on values."""
    return any(index is not None and index.dtype in MASKS for index in indices)


def _call_into(
    value: Tensor, func: Any, traits: _Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    """Return the call in a form that writes to the storage of its recorded `value`."""
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
    """Return torch's own function for the op if it accepts these arguments, else the overload.

    A tape is replayed often, and torch's function takes half as long to call. No schema lists the
    arguments that it accepts, so it is called once with them. This writes the values that its
    result already holds.
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
    """Return the types of some arguments and of the items of lists."""
    types = tuple(map(type, values))
    if list not in types and tuple not in types:
        return types
    return tuple(_types(one) if isinstance(one, list | tuple) else type(one) for one in values)


@dataclass(frozen=True)
class _OutForm:
    """The overload of an op that writes into `out=`, and the other keywords that it accepts.

    `binding` is torch's own function for the op, if there is one. `fastest` maps argument types and
    keyword names to the function to call.
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
    """Return torch's own function for an op, if there is one."""
    found: Callable[..., Any] | None = getattr(torch, name, getattr(torch._C._nn, name, None))
    return found


def _positional(func: Any) -> list[tuple[str, str]]:
    arguments = func._schema.arguments
    return [
        (argument.name, str(argument.type)) for argument in arguments if not argument.kwarg_only
    ]
