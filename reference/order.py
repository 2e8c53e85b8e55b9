"""The order of a world's device work beside its forwards: here, each piece before the next.

An engine that overlaps steps has another order, with waits of its own.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from paritybit.reference.transfer import transfer
from torch import Tensor

Values = Mapping[str, Sequence[int]]
"""What the host hands to the device, by name."""

Arrived = Mapping[str, Tensor]
"""The same on the device, int64, by name."""


class InOrder:
    """Device work in the order in which the host asks for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def write(self, values: Values, work: Callable[[Arrived], None]) -> None:
        """Write to tables that forwards read: `work` gets `values` on the device."""
        _, arrived = transfer(values, self.device)
        work(arrived)

    def freeing(self) -> None:
        """Follow the host as it is about to free rows and slots that a forward may still read."""

    def evicting(self) -> None:
        """Follow the host as it is about to free what left a window that may still be read."""
