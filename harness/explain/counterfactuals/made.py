"""The first line of the engine where correcting a wrong value makes the property hold.

The forward is run again while following its lines. Each place where a tensor or an array has the
wrong values is tried: they are corrected in place there, and nowhere else.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from paritybit.harness.explain.facts import SourceLine
from paritybit.harness.explain.recorded import Run
from paritybit.harness.explain.tracing import Seen, lines_of, names_used, values_of
from torch import Tensor

MOST_PLACES = 24
"""The maximum number of places to try."""

MOST_ELEMENTS = 1 << 14
"""The number of elements of a tensor that is examined again when a line names it."""

FEWEST = 2
"""Different values that a list needs, to be distinguishable from other lists."""

SEEN = 256
"""The number of values of a list in which different values are counted."""


@dataclass
class Wanted:
    """The wrong values, flat, and the right ones.

    A single value may occur in many places. It is searched only if it is `known` to be copied, or,
    if it is `alone`, where no other values are beside it. `others` are further wrong and right
    values, which are corrected where a frame of the same code has them at the same line. Tensors
    whose storage address is in `passed_over` are ignored.
    """

    held: Tensor
    right: Tensor
    known: bool = False
    others: tuple[tuple[Tensor, Tensor], ...] = ()
    passed_over: Collection[int] = ()
    alone: bool = False

    def __post_init__(self) -> None:
        self.wrong_bytes = _bytes(_array(self.held))
        self.right_bytes = _bytes(_array(self.right))
        array = _array(self.held)
        assert array is not None
        self.kind, self.size = _kind(self.held), 8 if array.dtype.kind in "iub" else array.itemsize
        self.fixable = self.held.numel() == self.right.numel()
        values = set(self.held.flatten()[:SEEN].tolist())
        self.different = len(values)
        known = self.known or self.alone
        self.telling = len(values) >= FEWEST or (known and self.held.numel() > 0)

    def at(self, value: Any) -> int | None:
        """Return the element at which a value begins to hold the wrong values, or None."""
        array = _array(value)
        if array is None or array.size < self.held.numel():
            return None
        if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in self.passed_over:
            return None
        if _kind(value) != self.kind:
            return None
        if self.alone and self.different < FEWEST and array.size != self.held.numel():
            return None
        held = _bytes(array)
        found = held.find(self.wrong_bytes)
        while found >= 0 and found % self.size:
            found = held.find(self.wrong_bytes, found + 1)
        known = self.right_bytes and not self.fixable and self.right_bytes in held
        if found < 0 or known:
            return None
        return found // self.size

    def fix(self, value: Any, first: int) -> None:
        """Write the right values to a tensor or an array, in place."""
        right = self.right.flatten()
        if isinstance(value, Tensor):
            held = value.detach().flatten().clone()
            held[first : first + right.numel()] = right.to(held.dtype)
            value.detach().copy_(held.view(value.shape))
            return
        array: np.ndarray[Any, Any] = value.reshape(-1)
        if np.shares_memory(array, value) and value.flags.writeable:
            array[first : first + right.numel()] = right.cpu().numpy().astype(array.dtype)


def made_at(
    wanted: Wanted, again: Callable[[Seen], Run], holds: Callable[[Run], bool]
) -> tuple[SourceLine, ...]:
    """Return the first line with the wrong values where correcting them makes the property hold.

    Its callers follow. If values cannot be corrected in place, return the first line with them, or
    with them in one memory. Returns no lines if nothing is found.
    """
    if not wanted.telling or wanted.wrong_bytes == wanted.right_bytes:
        return ()
    first = _Look(wanted)
    again(first)
    if not wanted.fixable:
        many = wanted.held.numel() >= FEWEST and first.places
        return first.places[0] if many else ()
    for place, lines in enumerate(first.places[:MOST_PLACES]):
        look = _Look(wanted, place)
        fixed = holds(again(look))
        look.undo()
        if fixed:
            return lines
    return first.expanded[0] if first.expanded else ()


class _Look:
    """Looks for wanted values after each line. Corrects them at one place, if given.

    Each value of a frame is examined once, again if a line that names it may have changed it, and
    again when the frame returns. `expanded` has the places of tensors that cannot be corrected.
    """

    def __init__(self, wanted: Wanted, fixed: int | None = None) -> None:
        self.wanted, self.fixed = wanted, fixed
        self.places: list[tuple[SourceLine, ...]] = []
        self.expanded: list[tuple[SourceLine, ...]] = []
        self._seen: dict[tuple[int, int], tuple[FrameType, Any]] = {}
        self._found: set[tuple[int, int]] = set()
        self._before: list[tuple[Any, Any]] = []
        self._fixed_at: tuple[CodeType, int] | None = None

    def undo(self) -> None:
        """Restore the wrong values, because the memory may be the batch's and outlive a run."""
        for value, before in reversed(self._before):
            put_back(value, before)

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Examine the values in a frame."""
        over = returned is not None
        named = {id(frame.f_locals.get(name)) for name in names_used(frame.f_code, line)}
        for value in values_of(frame.f_locals, returned):
            if not isinstance(value, Tensor | np.ndarray):
                continue
            key = id(frame), id(value)
            changed = id(value) in named and np.prod(value.shape) <= MOST_ELEMENTS
            if key in self._found or (key in self._seen and not (over or changed)):
                continue
            self._seen[key] = frame, value
            first = self.wanted.at(value)
            if first is not None:
                self._found.add(key)
                if expanded(value):
                    self.expanded.append(lines_of(frame, line, "made"))
                    continue
                if self.fixed == len(self.places):
                    self._fix(self.wanted, value, first)
                    self._fixed_at = frame.f_code, line
                self.places.append(lines_of(frame, line, "made"))
        if self._fixed_at == (frame.f_code, line):  # Here, or in a later layer.
            self._fix_others(frame, returned)

    def _fix(self, wanted: Wanted, value: Any, first: int) -> None:
        before = value.clone() if isinstance(value, Tensor) else value.copy()
        self._before.append((value, before))
        wanted.fix(value, first)

    def _fix_others(self, frame: FrameType, returned: Any) -> None:
        """Correct the other wrong values that the frame holds, each once."""
        for wrong, right in self.wanted.others:
            other = Wanted(wrong, right)
            for value in values_of(frame.f_locals, returned) if other.fixable else ():
                first = None if expanded(value) else other.at(value)
                if first is not None:
                    self._fix(other, value, first)
                    break


def expanded(value: Any) -> bool:
    """Whether elements of a tensor share memory, so that none can be written alone."""
    shown = zip(value.shape, value.stride(), strict=True) if isinstance(value, Tensor) else ()
    return any(size > 1 and stride == 0 for size, stride in shown)


def put_back(value: Any, before: Any) -> None:
    """Restore the former values of a tensor or an array."""
    if isinstance(value, Tensor):
        value.detach().copy_(before)
    elif value.flags.writeable:
        value[...] = before


def _array(value: Any) -> "np.ndarray[Any, Any] | None":
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        return plain.view(torch.int16).numpy() if plain.dtype is torch.bfloat16 else plain.numpy()
    return value if isinstance(value, np.ndarray) else None


def _kind(value: Any) -> str:
    """Return what decides whether two arrays can hold the same values: integer, or a dtype."""
    if isinstance(value, Tensor):
        return str(value.dtype) if value.is_floating_point() else "whole"
    kinds = {"float32": "torch.float32", "float64": "torch.float64"}
    return kinds.get(str(value.dtype), "whole" if value.dtype.kind in "iub" else "other")


def _bytes(array: "np.ndarray[Any, Any] | None") -> bytes:
    """Return the bytes of an array, integers as eight bytes each."""
    assert array is not None
    if array.dtype.kind in "iub" and array.dtype.itemsize != 8:
        return array.astype(np.int64).tobytes()
    return array.tobytes()
