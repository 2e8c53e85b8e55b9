"""Finds layers of one group that keep their KV in the same memory.

A connector merges the layers that an engine lets share KV, or leaves them out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

from paritybit.watch.facts import Group, Layer
from paritybit.watch.observations import Wrong


@dataclass(frozen=True)
class Span:
    """The memory of a tensor: its first byte, its rows, their size and their distance in bytes."""

    begin: int
    rows: int
    size: int
    step: int

    @property
    def end(self) -> int:
        """The first byte after the last row."""
        return self.begin + (self.rows - 1) * self.step + self.size

    def meets(self, other: "Span") -> bool:
        """Return whether some byte belongs to both. If that is hard to say, return False."""
        if self.end <= other.begin or other.end <= self.begin:
            return False
        if self.step != other.step:
            return self.step == self.size and other.step == other.size
        apart = (other.begin - self.begin) % self.step
        return apart < self.size or self.step - apart < other.size


def span(tensor: Tensor) -> Span | None:
    """Return the memory of a tensor, or None if it is empty or other bytes lie within a row."""
    if not tensor.numel():
        return None
    width, rows = tensor.element_size(), len(tensor)
    inner = zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
    size = (1 + sum((number - 1) * stride for number, stride in inner)) * width
    if size * rows != tensor.numel() * width:
        return None
    step = tensor.stride(0) * width if rows > 1 else size
    return Span(tensor.data_ptr(), rows, size, step) if step >= size else None


def overlaps(groups: Sequence[Group]) -> Iterator[Wrong]:
    """Yield, for each group, the first two layers that share memory."""
    for group in groups:
        spans = [(layer, mine) for layer in group.layers if (mine := spans_of(layer))]
        for (one, mine), (other, others) in combinations(spans, 2):
            if any(a.meets(b) for a in mine for b in others):
                names = f"{one.name} and {other.name}"
                text = f"keeps the KV of {names} in the same memory"
                yield Wrong(text, group.name, other.name, cause={"what": f"{names} share memory"})
                break


def spans_of(layer: Layer) -> list[Span]:
    """Return the memory of a layer's tensors, as far as it is known."""
    return [found for one in layer.tensors if (found := span(one)) is not None]
