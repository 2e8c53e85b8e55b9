"""Two bit patterns side by side, with marks on the digits that differ.

The patterns are hexadecimal texts of float32 or bfloat16 values.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

SIDES: Mapping[str, tuple[str, str]] = {
    "hermetic_replay": ("freshly captured", "after earlier replays"),
    "padding_noninterference": ("undisturbed", "with noise"),
    "batch_invariance": ("own batch", "other batch"),
    "determinism": ("first play", "second play"),
    "dense_agreement": ("float64 oracle", "eager"),
}
"""The names of the two sides, if they are not the eager and the graph run."""


@dataclass(frozen=True)
class Run:
    """Adjacent digits that all differ from the other side, or all agree with it."""

    text: str
    differs: bool


@dataclass(frozen=True)
class Pattern:
    """One side: its name, its digits in runs, and the float they stand for ('' if none)."""

    side: str
    runs: tuple[Run, ...]
    value: str


@dataclass(frozen=True)
class Comparison:
    """Both sides, and the number of differing bits as text ('' if they are not bit patterns)."""

    left: Pattern
    right: Pattern
    message: str


def compare(property_name: str, where: Mapping[str, Any]) -> Comparison | None:
    """Return both patterns of a violation, or None if it has none."""
    if "eager_bits" not in where or "graph_bits" not in where:
        return None
    left, right = str(where["eager_bits"]), str(where["graph_bits"])
    sides = SIDES.get(property_name, ("eager", "graph"))
    return Comparison(
        Pattern(sides[0], _runs(left, right), float_of(left)),
        Pattern(sides[1], _runs(right, left), float_of(right)),
        _count(left, right),
    )


def _runs(text: str, other: str) -> tuple[Run, ...]:
    """Split `text` into runs that differ from `other` and runs that agree."""
    padded = other.ljust(len(text))
    pairs = zip(text, padded[: len(text)], strict=True)
    groups = groupby(pairs, key=lambda pair: pair[0] != pair[1])
    return tuple(Run("".join(own for own, _ in group), differs) for differs, group in groups)


def float_of(text: str) -> str:
    """Return the float for 0x and 8 digits (float32) or 4 digits (bfloat16), or ''."""
    width = _width(text)
    if width not in (16, 32):
        return ""
    bits = int(text, 16) << (32 - width)
    (value,) = struct.unpack(">f", bits.to_bytes(4, "big"))
    return f"{value:.9g}" if width == 32 else f"{value:.4g}"


def _count(left: str, right: str) -> str:
    width = _width(left)
    if not width or width != _width(right):
        return ""
    count = (int(left, 16) ^ int(right, 16)).bit_count()
    return f"{count} of {width} bits differ"


def _width(text: str) -> int:
    """Return the number of bits of a text such as 0x3f800000, or 0 for other texts."""
    digits = text[2:]
    spelled = (
        text.startswith("0x") and digits and all(digit in "0123456789abcdef" for digit in digits)
    )
    return 4 * len(digits) if spelled else 0
