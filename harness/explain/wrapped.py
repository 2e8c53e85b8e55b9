"""The line of the engine at which a slot number is first truncated to fewer bits.

Slots have high numbers in a pool that skips numbers, so they do not fit in 16 or 8 bits.
"""

from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
from paritybit.harness.explain.facts import GivenValue, SourceLine
from paritybit.harness.explain.origins.log_sites import qualified_name
from paritybit.harness.explain.tracing import following, lines_of, values_of
from torch import Tensor

Numbers: TypeAlias = "np.ndarray[Any, Any]"

WIDTHS = (8, 16)
"""Integer widths in bits that are too small for such a slot number."""


class _Wrapped:
    """Looks for the first value that equals a slot number modulo a power of two."""

    def __init__(self, slots: range) -> None:
        self.slots = slots
        self.found: tuple[GivenValue, tuple[SourceLine, ...]] | None = None
        self._seen: dict[tuple[int, int], tuple[FrameType, Any]] = {}

    def __call__(self, frame: FrameType, line: int, returned: Any) -> None:
        """Examine the values in a frame, each once."""
        for value in values_of(frame.f_locals, returned):
            key = id(frame), id(value)
            if self.found is not None or key in self._seen:
                continue
            self._seen[key] = frame, value
            numbers = numbers_of(value)
            if numbers is None:
                continue
            held, right = narrowed(numbers, self.slots)
            if right is not None:
                lines = lines_of(frame, line, "made")
                what = f"a slot number in {qualified_name(frame)}"
                given = GivenValue(what, str(held), str(right), stale=False, left_by=None, how=None)
                self.found = given, lines


def numbers_of(value: Any) -> "Numbers | None":
    """Return integers as an array, or None for anything else."""
    if isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex()):
        value = value.detach().cpu().numpy()
    whole = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size
    return value if whole else None


def narrowed(value: Numbers, slots: range) -> tuple[int, int | None]:
    """Return an element of an array that is a truncated slot number, and the full number.

    Without one, the number is None. A positive 8-bit number in a wide array is no evidence, because
    it may have any meaning.
    """
    lowest, highest, bits = int(value.min()), int(value.max()), 8 * value.dtype.itemsize
    if lowest < -1:
        return lowest, widened(lowest, slots, WIDTHS)
    widths = WIDTHS if bits == WIDTHS[0] else WIDTHS[1:]
    return highest, widened(highest, slots, widths) if highest > 0 else None


def widened(held: int, slots: range, widths: Iterable[int]) -> int | None:
    """Return the slot number whose lowest bits a value is, or None."""
    for width in widths:
        first = slots.start + (held - slots.start) % 2**width
        if -(2 ** (width - 1)) <= held != first and first in slots:
            return int(first)
    return None


def wrapped_at(
    play: Callable[[], Any], slots: range
) -> tuple[GivenValue | None, tuple[SourceLine, ...]]:
    """Play, and return the first truncated slot number and its line."""
    look = _Wrapped(slots)
    with following(look):
        play()
    return look.found or (None, ())
