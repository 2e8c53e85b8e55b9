"""Mistakes with one static input: classes that come before the right `StaticInputs`.

Each lets the right populate run, then makes of the buffer what the mistake would have. What the
buffer held before is remembered by the runner's own difference, since a runner may populate in
two calls.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from paritybit.reference.batch import ForwardBatch
from paritybit.subjects.buffers import StaticInputs
from paritybit.subjects.contracts import Axis, Policy, StaticInput
from paritybit.subjects.runners.base import GraphRunner
from torch import Tensor


class MistakenInputs(StaticInputs):
    """Gets the static input `mutated` wrong.

    `before` is what it held before this replay, `left` what the last one left there: where
    padding keeps a tail, the harness writes to it between the two.
    `populated` counts how often it was populated, `differed` how often the mistake made a
    difference to what it holds.
    """

    mutated: ClassVar[str]
    before: Tensor
    left: Tensor | None = None
    was_reset = False
    populated = differed = 0

    def begin(self) -> None:
        """Remember what the buffer holds before a replay populates it."""
        self.before = self.buffers[self.mutated].clone()
        self.was_reset = False

    def populate(
        self, live_values: Mapping[str, Tensor], *, padded: bool, padded_on_host: bool | None = None
    ) -> None:
        """Populate as is right, then make the mistake."""
        super().populate(live_values, padded=padded, padded_on_host=padded_on_host)
        row, buffer = self.rows[self.mutated], self.buffers[self.mutated]
        branch = padded_on_host if row.host and padded_on_host is not None else padded
        self.was_reset |= branch and row.policy is Policy.RESET
        values = live_values.get(self.mutated)
        right = buffer.clone()
        self.spoil(row, buffer, values, 0 if values is None else row.length(values))
        self.left = buffer.clone()
        self.populated += 1
        self.differed += not torch.equal(right, buffer)

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Make of a populated buffer, whose first `live` elements are `values`, what is wrong."""

    def put(self, row: StaticInput, buffer: Tensor, place: int, other: Tensor) -> None:
        """Give one element, or row, what it is in another tensor of the buffer's shape."""
        if place < row.length(buffer):
            wide = row.axis is Axis.MROPE
            held = buffer[:, place] if wide else buffer[place]
            held.copy_(other[:, place] if wide else other[place])

    def blank(self, row: StaticInput, buffer: Tensor) -> None:
        """Make the buffer what it is before anything live is copied."""
        if self.was_reset:
            buffer.fill_(row.value)
        else:
            buffer.copy_(self.before)


class FirstPaddedNotReset(MistakenInputs):
    """Resets all but the first padded element."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Put the first padded element back."""
        if self.was_reset:
            self.put(row, buffer, live, self.before)


class LastNotReset(MistakenInputs):
    """Resets all but the last element."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Put the last element back, unless it is live."""
        last = row.length(buffer) - 1
        if self.was_reset and live <= last:
            self.put(row, buffer, last, self.before)


class ResetAfterCopy(MistakenInputs):
    """Copies the live values, then resets."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Reset."""
        if self.was_reset:
            buffer.fill_(row.value)


class WrongTail(MistakenInputs):
    """Has a wrong value behind the live ones, whatever was written there."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Fill the tail with what is one too high."""
        tail = buffer[:, live:] if row.axis is Axis.MROPE else buffer[live:]
        tail.fill_(row.value + 1)


class CopiedOneShort(MistakenInputs):
    """Copies all live values but the last."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Make the last one what it is where nothing is copied: reset, or left there."""
        if live and self.was_reset:
            self.put(row, buffer, live - 1, torch.full_like(buffer, row.value))
        elif live:
            self.put(row, buffer, live - 1, self.before if self.left is None else self.left)


class LateByOne(MistakenInputs):
    """Copies what the replay before should have had."""

    latest: Tensor | None = None

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Make the buffer blank and copy the last replay's values."""
        if values is not None:
            late, self.latest = self.latest, values.clone()
            self.blank(row, buffer)
            if late is not None:
                row.head(buffer, row.length(late)).copy_(late)


class FrozenAtCapture(MistakenInputs):
    """Is neither reset nor copied into."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Put everything back."""
        buffer.copy_(self.before)


class AddressRebound(MistakenInputs):
    """Is a new tensor in every replay."""

    def begin(self) -> None:
        """Take a new tensor."""
        super().begin()
        self.buffers[self.mutated] = self.before.clone()


class BeginsPopulating(GraphRunner):
    """Tells its mistaken inputs when a replay begins."""

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Begin, then populate as is right."""
        assert isinstance(self.inputs, MistakenInputs)
        self.inputs.begin()
        super().populate(batch, bucket, padded=padded)
