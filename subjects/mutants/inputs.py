"""Mistakes with one static input: classes that precede the correct `StaticInputs`.

Each runs the correct populate and then changes the buffer to what the mistake would leave. The
runner saves the buffer's earlier contents, because it may call populate twice.
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
    """Makes a mistake with the static input `mutated`.

    - `before`: the contents before this replay.
    - `left`: the contents after the last replay. The harness writes to kept tails in between.
    - `populated`: how often the input was populated.
    - `differed`: how often the mistake changed the contents.
    """

    mutated: ClassVar[str]
    before: Tensor
    left: Tensor | None = None
    was_reset = False
    populated = differed = 0

    def begin(self) -> None:
        """Save the contents of the buffer before a replay populates it."""
        self.before = self.buffers[self.mutated].clone()
        self.was_reset = False

    def populate(
        self, live_values: Mapping[str, Tensor], *, padded: bool, padded_on_host: bool | None = None
    ) -> None:
        """Populate correctly, then make the mistake."""
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
        """Make the mistake in a populated buffer, whose first `live` elements are `values`."""

    def put(self, row: StaticInput, buffer: Tensor, place: int, other: Tensor) -> None:
        """Copy one element, or row, from another tensor of the buffer's shape."""
        if place < row.length(buffer):
            wide = row.axis is Axis.MROPE
            held = buffer[:, place] if wide else buffer[place]
            held.copy_(other[:, place] if wide else other[place])

    def blank(self, row: StaticInput, buffer: Tensor) -> None:
        """Set the buffer to its contents before live values are copied."""
        if self.was_reset:
            buffer.fill_(row.value)
        else:
            buffer.copy_(self.before)


class FirstPaddedNotReset(MistakenInputs):
    """Resets all but the first padded element."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Restore the first padded element."""
        if self.was_reset:
            self.put(row, buffer, live, self.before)


class LastNotReset(MistakenInputs):
    """Resets all but the last element."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Restore the last element, unless it is live."""
        last = row.length(buffer) - 1
        if self.was_reset and live <= last:
            self.put(row, buffer, last, self.before)


class ResetAfterCopy(MistakenInputs):
    """Copies the live values, then resets."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Reset the buffer."""
        if self.was_reset:
            buffer.fill_(row.value)


class WrongTail(MistakenInputs):
    """Has a wrong value in the tail, whatever was written there."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Fill the tail with a value that is one too high."""
        tail = buffer[:, live:] if row.axis is Axis.MROPE else buffer[live:]
        tail.fill_(row.value + 1)


class CopiedOneShort(MistakenInputs):
    """Copies all live values but the last."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Set the last live element to its value without a copy."""
        if live and self.was_reset:
            self.put(row, buffer, live - 1, torch.full_like(buffer, row.value))
        elif live:
            self.put(row, buffer, live - 1, self.before if self.left is None else self.left)


class LateByOne(MistakenInputs):
    """Copies the values of the previous replay."""

    latest: Tensor | None = None

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Blank the buffer and copy the previous replay's values."""
        if values is not None:
            late, self.latest = self.latest, values.clone()
            self.blank(row, buffer)
            if late is not None:
                row.head(buffer, row.length(late)).copy_(late)


class FrozenAtCapture(MistakenInputs):
    """Neither resets nor copies."""

    def spoil(self, row: StaticInput, buffer: Tensor, values: Tensor | None, live: int) -> None:
        """Restore all elements."""
        buffer.copy_(self.before)


class AddressRebound(MistakenInputs):
    """Rebinds the input to a new tensor in every replay."""

    def begin(self) -> None:
        """Replace the buffer by a copy."""
        super().begin()
        self.buffers[self.mutated] = self.before.clone()


class BeginsPopulating(GraphRunner):
    """Notifies the mistaken inputs when a replay begins."""

    def populate(self, batch: ForwardBatch | None, bucket: int, *, padded: bool) -> None:
        """Notify the inputs, then populate correctly."""
        assert isinstance(self.inputs, MistakenInputs)
        self.inputs.begin()
        super().populate(batch, bucket, padded=padded)
