"""Two bit patterns side by side, with the digits that differ marked.

Knows hexadecimal text and the two float formats the project has. Does not know what
was compared, only how the comparison of each property names its two sides.
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
"""What the two sides are called, where they are not the eager and the graph world."""


@dataclass(frozen=True)
class Run:
    """Neighbouring digits that all differ from the other side's, or all agree with them."""

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
    """Both sides, and in words how many bits differ ('' for texts that are no bit patterns)."""

    left: Pattern
    right: Pattern
    message: str


def compare(property_name: str, where: Mapping[str, Any]) -> Comparison | None:
    """Return both patterns of a violation, or None if it names none."""
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
    """Split `text` where it begins or ceases to differ from `other`, place by place."""
    padded = other.ljust(len(text))
    pairs = zip(text, padded[: len(text)], strict=True)
    groups = groupby(pairs, key=lambda pair: pair[0] != pair[1])
    return tuple(Run("".join(own for own, _ in group), differs) for differs, group in groups)


def float_of(text: str) -> str:
    """Return the float that 0x and 8 digits (float32) or 4 digits (bfloat16) stand for, or ''."""
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
    """Return how many bits a text such as 0x3f800000 spells, 0 if it is none such."""
    digits = text[2:]
    spelled = (
        text.startswith("0x") and digits and all(digit in "0123456789abcdef" for digit in digits)
    )
    return 4 * len(digits) if spelled else 0
