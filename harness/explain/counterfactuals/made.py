"""The line of the engine's code at which a wrong value first stands, and holds no more once mended.

The forward is run again with its lines followed. Each place at which a tensor or an array holds
the wrong values is tried: they are put right there, in place, and nowhere else.
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
"""Places that are tried, one by one."""

MOST_ELEMENTS = 1 << 14
"""Elements of a tensor that is looked at again because a line names it."""

FEWEST = 2
"""Different values that a list must have to be known from others."""

SEEN = 256
"""Values of a list of which the different ones are counted."""


@dataclass
class Wanted:
    """The values that are wrong, one after the other, and those that are right.

    One value alone may stand in many places. It is looked for only if it is `known` to be copied,
    or, if it is `alone`, where there is nothing beside it.
    `others` are further values, wrong and right, that are put right where a frame of the same code
    holds them at the same line.
    Tensors in the memory of `passed_over`, addresses of storages, are not looked at.
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
        self.mendable = self.held.numel() == self.right.numel()
        values = set(self.held.flatten()[:SEEN].tolist())
        self.different = len(values)
        known = self.known or self.alone
        self.telling = len(values) >= FEWEST or (known and self.held.numel() > 0)

    def at(self, value: Any) -> int | None:
        """Return from which element on a tensor or an array holds the wrong values."""
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
        known = self.right_bytes and not self.mendable and self.right_bytes in held
        if found < 0 or known:
            return None
        return found // self.size

    def mend(self, value: Any, first: int) -> None:
        """Put the right values into a tensor or an array, in place."""
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
    """Return the first line at which the values stand that, put right there, make a property hold.

    The lines that called it come behind it. Where values cannot be put right in place, the first
    line at which they stand, or stand in one memory. There are none where nothing is found.
    """
    if not wanted.telling or wanted.wrong_bytes == wanted.right_bytes:
        return ()
    first = _Look(wanted)
    again(first)
    if not wanted.mendable:
        many = wanted.held.numel() >= FEWEST and first.places
        return first.places[0] if many else ()
    for place, lines in enumerate(first.places[:MOST_PLACES]):
        look = _Look(wanted, place)
        mended = holds(again(look))
        look.undo()
        if mended:
            return lines
    return first.expanded[0] if first.expanded else ()


class _Look:
    """Looks for wanted values after each line; mends them at one place, if one is said.

    Each value of a frame is looked at once, again where a line that names it may have changed it,
    and again where the frame returns. Places of tensors that cannot be mended are in `expanded`.
    """

    def __init__(self, wanted: Wanted, mended: int | None = None) -> None:
        self.wanted, self.mended = wanted, mended
        self.places: list[tuple[SourceLine, ...]] = []
        self.expanded: list[tuple[SourceLine, ...]] = []
        self._seen: dict[tuple[int, int], tuple[FrameType, Any]] = {}
        self._found: set[tuple[int, int]] = set()
        self._before: list[tuple[Any, Any]] = []
        self._mended_at: tuple[CodeType, int] | None = None

    def undo(self) -> None:
        """Give what was mended its wrong values back: it may be the batch's, and outlive a run."""
        for value, before in reversed(self._before):
            put_back(value, before)

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Look at what a frame holds."""
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
                if self.mended == len(self.places):
                    self._mend(self.wanted, value, first)
                    self._mended_at = frame.f_code, line
                self.places.append(lines_of(frame, line, "made"))
        if self._mended_at == (frame.f_code, line):  # Now, or in a later layer.
            self._mend_others(frame, returned)

    def _mend(self, wanted: Wanted, value: Any, first: int) -> None:
        before = value.clone() if isinstance(value, Tensor) else value.copy()
        self._before.append((value, before))
        wanted.mend(value, first)

    def _mend_others(self, frame: FrameType, returned: Any) -> None:
        """Put the other wrong values right in whatever the frame holds, each once."""
        for wrong, right in self.wanted.others:
            other = Wanted(wrong, right)
            for value in values_of(frame.f_locals, returned) if other.mendable else ():
                first = None if expanded(value) else other.at(value)
                if first is not None:
                    self._mend(other, value, first)
                    break


def expanded(value: Any) -> bool:
    """Whether several elements of a tensor are one in memory, so that none can be written alone."""
    shown = zip(value.shape, value.stride(), strict=True) if isinstance(value, Tensor) else ()
    return any(size > 1 and stride == 0 for size, stride in shown)


def put_back(value: Any, before: Any) -> None:
    """Give a tensor or an array the values that it had."""
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
    """Return what decides whether the values of two arrays can be the same: whole, or a dtype."""
    if isinstance(value, Tensor):
        return str(value.dtype) if value.is_floating_point() else "whole"
    kinds = {"float32": "torch.float32", "float64": "torch.float64"}
    return kinds.get(str(value.dtype), "whole" if value.dtype.kind in "iub" else "other")


def _bytes(array: "np.ndarray[Any, Any] | None") -> bytes:
    """Return the bytes of an array, whole numbers as eight bytes each."""
    assert array is not None
    if array.dtype.kind in "iub" and array.dtype.itemsize != 8:
        return array.astype(np.int64).tobytes()
    return array.tobytes()
