"""Which argument of an op is wrong: its values for a row, or what the graph captured.

Indices are not compared, because both worlds may list their slots differently.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from paritybit.harness.explain.facts import BakedIn
from paritybit.harness.explain.first_difference import ROWS_SECOND
from paritybit.harness.explain.static_origin import element_at
from paritybit.harness.lockstep.bits import bits, first_index
from paritybit.reference.ops import OpCall, Ops
from torch import Tensor

INDICES = frozenset(
    {
        *("begin", "end", "slots", "mask", "mask_start", "max_keys", "loc", "sources"),
        *("longest", "cache"),
    }
)
"""Arguments that say where to read or write. Each world has its own."""

INDICES_OF = {"scan_states": frozenset({"states"}), "store_rows": frozenset({"table", "rows"})}
"""Further such arguments of single ops."""


@dataclass(frozen=True)
class WrongArgument:
    """An argument whose values for one row differ: `held`, where the other run has `right`.

    `element` is the first that differs, and `place` its place in the storage of `tensor`, the whole
    argument. `strides` are those of the row.
    """

    name: str
    tensor: Tensor
    held: Tensor
    right: Tensor
    element: tuple[int, ...]
    place: int
    strides: tuple[int, ...]


def named_arguments(call: OpCall) -> dict[str, Any]:
    """Return the arguments of a call by the names of the op's parameters."""
    method = getattr(Ops, call.name, None)
    if method is None:
        return {}
    names = list(inspect.signature(method).parameters)[1:]
    return dict(zip(names, call.inputs, strict=False))


def wrong_argument(left: OpCall, right: OpCall, row: int) -> WrongArgument | None:
    """Return the first argument of `right` whose values for a row differ from those of `left`."""
    skipped = INDICES | INDICES_OF.get(right.name, frozenset())
    expected = named_arguments(left)
    for name, held in named_arguments(right).items():
        should = expected.get(name)
        if name in skipped or not isinstance(held, Tensor) or not isinstance(should, Tensor):
            continue
        if held.data_ptr() == should.data_ptr() or held.dtype != should.dtype:
            continue
        axis = _row_axis(right, held, row)
        if axis is not None and row < should.shape[axis]:
            held_row, should_row = held.select(axis, row), should.select(axis, row)
        elif held.shape == should.shape:
            held_row, should_row = held, should
        else:
            continue
        if held_row.shape != should_row.shape:
            continue
        different = bits(held_row) != bits(should_row)
        if different.any():
            found = first_index(different) if different.dim() else ()
            offset = sum(i * stride for i, stride in zip(found, held_row.stride(), strict=True))
            place = int(held_row.storage_offset()) + offset
            rows = held_row.clone(), should_row.clone()
            return WrongArgument(name, held, *rows, found, place, held_row.stride())
    return None


def _row_axis(call: OpCall, tensor: Tensor, row: int) -> int | None:
    """Return the axis of an argument along which the rows of its op lie, or None."""
    axis = 1 if call.name in ROWS_SECOND else 0
    rows = _rows(call)
    if rows is None or tensor.dim() <= axis or tensor.shape[axis] != rows or row >= rows:
        return None
    return axis


def _rows(call: OpCall) -> int | None:
    """Return the number of rows of an op, or None if it is not known."""
    if call.name in ("store_kv", "store_rows"):
        return len(call.inputs[3 if call.name == "store_kv" else 2])
    result = call.result[0] if isinstance(call.result, tuple) else call.result
    return None if result is None else int(result.shape[1 if call.name in ROWS_SECOND else 0])


def baked_in(
    captured: Sequence[OpCall], uncaptured: Sequence[OpCall], buffers: Mapping[str, Tensor]
) -> BakedIn | None:
    """Return what a graph has from its capture, where the function, run eagerly, has another value.

    It is an op that the other does not run, or an argument: a number, a shape, a stride, or a
    tensor that is no static buffer where the function reads one of `buffers`.
    """
    for place, (graph, function) in enumerate(zip_longest(captured, uncaptured)):
        names = [call.name if call is not None else "nothing more" for call in (graph, function)]
        if names[0] != names[1]:
            return BakedIn(names[0], place, None, *names)
        should = named_arguments(function)
        for name, held in named_arguments(graph).items():
            for what, value, right in _traits(held, should.get(name), buffers):
                if value != right:
                    return BakedIn(graph.name, place, f"{what}{name}", value, right)
    return None


def _traits(held: Any, right: Any, buffers: Mapping[str, Tensor]) -> Iterator[tuple[str, str, str]]:
    """Yield what may be captured of an argument, in words, and its values in both runs."""
    if not isinstance(held, Tensor) or not isinstance(right, Tensor):
        yield "", str(held), str(right)
        return
    yield "the shape of ", str(list(held.shape)), str(list(right.shape))
    yield "the stride of ", str(list(held.stride())), str(list(right.stride()))
    yield "the dtype of ", str(held.dtype), str(right.dtype)
    inside = _buffer_of(right, buffers)
    if inside is not None and _buffer_of(held, buffers) != inside:
        yield "", "no static buffer", f"static buffer {inside}"


def _buffer_of(tensor: Tensor, buffers: Mapping[str, Tensor]) -> str | None:
    """Return the static buffer and element at which a tensor begins, or None."""
    found = element_at(buffers, tensor, int(tensor.storage_offset()))
    return None if found is None else f"{found[0]}[{found[1]}]"


def text_of(values: Tensor, element: tuple[int, ...]) -> str:
    """Return one element as text."""
    value = values[element].item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
