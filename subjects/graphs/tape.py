"""Graphs on a CPU: a tape of aten calls with their concrete tensors.

A tape has the semantics of a CUDA graph. A replay runs no Python of the recorded function and
writes into the same storages. Recording fails on anything that a graph could not contain, except
a read into Python by a function that was taken from `Tensor` before.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial, wraps
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
        elif func._schema.is_mutable:
            self.calls.append(partial(func, *args, **kwargs))
        elif not _is_view(value, args):  # Its storage is an argument's.
            if not isinstance(value, Tensor) and traits.name not in SEVERAL:
                raise UncapturableError(f"{traits.name} does not return one tensor")
            self.calls.append(_copying(value, partial(func, *args, **kwargs)))
        return value


def _refused(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def refuse(*_: Any, **__: Any) -> None:
        raise UncapturableError(f"Tensor.{function.__name__} cannot be recorded in a graph")

    return refuse


def _is_view(value: Any, args: tuple[Any, ...]) -> bool:
    """Whether every tensor of `value` shares the storage of an argument."""
    # A schema also calls a possible copy an alias, as for `to`.
    known = {one.untyped_storage()._cdata for one in args if isinstance(one, Tensor)}
    if isinstance(value, Tensor):
        return value.untyped_storage()._cdata in known
    return isinstance(value, list | tuple) and all(
        isinstance(part, Tensor) and part.untyped_storage()._cdata in known for part in value
    )


def _by_mask(indices: Sequence[Tensor | None]) -> bool:
    """Whether an index is a mask. The elements it selects then depend on values."""
    return any(index is not None and index.dtype in MASKS for index in indices)


def _copying(recorded: Any, call: RecordedCall) -> RecordedCall:
    """Return a call whose value, a tensor or several, is copied to the recorded one."""
    if isinstance(recorded, Tensor):
        return lambda: recorded.copy_(call())

    def run() -> None:
        for result, value in zip(recorded, call(), strict=True):
            result.copy_(value)

    return run


@dataclass(frozen=True)
class _Traits:
    """How a tape treats calls of one overload.

    A replay skips a call that `leaves_nothing`: a span of the profiler, or an allocation, whose
    memory is allocated once at capture and never cleared.
    """

    name: str
    refused: bool
    indexes: bool
    leaves_nothing: bool


@cache
def _traits(func: Any) -> _Traits:
    """Return the traits of an overload. Torch never changes overloads."""
    name, indexes = func._schema.name, func.overloadpacket in INDEXING
    refused = bool(NOT_CAPTURABLE & set(func.tags)) or name in UNTAGGED
    if func is torch.ops.aten.repeat_interleave.self_int:  # Its shape depends on a number only.
        refused = False
    leaves_nothing = name in ALLOCATIONS or name.startswith("profiler::")
    return _Traits(name, refused and not indexes, indexes, leaves_nothing)
