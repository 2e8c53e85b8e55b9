"""Graphs on a CPU: a tape of aten calls with their concrete tensors.

Recording fails on anything that a CUDA graph could not contain, except a read into Python by a
function that was taken from `Tensor` before.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import BuiltinFunctionType
from typing import Any

import torch
from paritybit.reference.ops import Ops
from paritybit.subjects.graphs.dispatch import ALLOCATIONS, HOST_READS, UncompiledMode, replaced
from paritybit.subjects.graphs.segment import Segment, UncapturableError
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

COPIES = frozenset({"aten::to", "aten::_to_copy", "aten::clone", "aten::contiguous"})
"""Calls that return their first argument, or copy its elements to a new tensor of its shape."""

INDEXING = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)

MASKS = (torch.bool, torch.uint8)

RecordedCall = Callable[[], Any]
"""One recorded aten call with its tensors. It writes into the storage of the recorded result."""


class TapeSegment(Segment):
    """Recorded aten calls. A replay runs them into the storages of the recorded run."""

    def __init__(self, ops: Ops) -> None:
        super().__init__(ops)
        self._recorder, self._recording = _Recorder(), ExitStack()

    def _begin(self) -> None:
        self._recording.enter_context(self._recorder)
        self._recording.enter_context(replaced(HOST_READS, _refused))

    def _end(self) -> None:
        self._recording.close()

    def _replay(self) -> None:
        for call in self._recorder.calls:
            call()


class _Recorder(UncompiledMode):
    """Records every aten call made while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[RecordedCall] = []

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
        value = func._op(*args, **kwargs)
        if traits.leaves_nothing:
            pass
        elif traits.mutates:
            self.calls.append(partial(func._op, *args, **kwargs))
        elif not (traits.may_alias and _is_view(value, args[0])):
            if not isinstance(value, Tensor) and traits.name not in SEVERAL:
                raise UncapturableError(f"{traits.name} does not return one tensor")
            self.calls.append(_writing(traits, value, args, kwargs, func._op))
        return value


def _refused(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def refuse(*_: Any, **__: Any) -> None:
        raise UncapturableError(f"Tensor.{function.__name__} cannot be recorded in a graph")

    return refuse


def _is_view(value: Any, argument: Tensor) -> bool:
    """Whether every tensor of `value` shares the storage of `argument`."""
    # A schema also calls a possible copy an alias, as for `to`.
    known = argument.untyped_storage()._cdata
    parts = (value,) if isinstance(value, Tensor) else value
    return all(part.untyped_storage()._cdata == known for part in parts)


def _by_mask(indices: Sequence[Tensor | None]) -> bool:
    """Whether an index is a mask. The elements it selects then depend on values."""
    return any(index is not None and index.dtype in MASKS for index in indices)


@dataclass(frozen=True)
class _Traits:
    """How a tape treats calls of one overload.

    - `leaves_nothing`: a replay skips the call. It is a span of the profiler, or an allocation,
      whose memory is allocated once at capture and never cleared.
    - `may_alias`: the result may be a view of the first argument.
    - `into`: what writes the same result to its argument `out`, or None.
    """

    name: str
    refused: bool
    indexes: bool
    leaves_nothing: bool
    mutates: bool
    may_alias: bool
    into: Callable[..., Any] | None


@cache
def _traits(func: Any) -> _Traits:
    """Return the traits of an overload. Torch never changes overloads."""
    schema = func._schema
    name, indexes = schema.name, func.overloadpacket in INDEXING
    refused = bool(NOT_CAPTURABLE & set(func.tags)) or name in UNTAGGED
    if func is torch.ops.aten.repeat_interleave.self_int:  # Its shape depends on a number only.
        refused = False
    return _Traits(
        name,
        refused=refused and not indexes,
        indexes=indexes,
        leaves_nothing=name in ALLOCATIONS or name.startswith("profiler::"),
        mutates=schema.is_mutable,
        may_alias=any(one.alias_info is not None for one in schema.returns),
        into=_into(func),
    )


def _into(func: Any) -> Callable[..., Any] | None:
    """Return what computes the same as an overload, with a further argument `out`, or None.

    An `out` that torch generates is not used, because it also computes the result and copies it.
    """
    packet, wanted = func.overloadpacket, _signature(func)
    function = getattr(torch, packet.__name__, None)
    for other in (getattr(packet, name) for name in packet.overloads()):
        if (
            _signature(other) == [*wanted, ("out", "Tensor")]
            and torch.Tag.generated not in other.tags
        ):
            # A function of torch parses its arguments faster than an overload.
            return function if isinstance(function, BuiltinFunctionType) else other._op
    return None


def _signature(func: Any) -> list[tuple[str, str]]:
    """Return the name and type of each argument of an overload."""
    return [(one.name, str(one.type)) for one in func._schema.arguments]


def _writing(
    traits: _Traits,
    recorded: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    function: Callable[..., Any],
) -> RecordedCall:
    """Return a call of `function` that writes its value into the recorded one.

    The value is a tensor, or several. Where torch can, it is computed in place of the recorded one.
    """
    if traits.name in COPIES:
        return partial(recorded.copy_, args[0])
    if traits.into is not None:
        return partial(traits.into, *args, **kwargs, out=recorded)
    call = partial(function, *args, **kwargs)
    if isinstance(recorded, Tensor):
        return lambda: recorded.copy_(call())

    def run() -> None:
        for result, value in zip(recorded, call(), strict=True):
            result.copy_(value)

    return run
