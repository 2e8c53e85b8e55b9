"""The order of device work outside forwards. Here, each piece of work ends before the next.

An engine that overlaps steps replaces this order with one that has its own waits.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from paritybit.reference.transfer import transfer
from torch import Tensor

Values = Mapping[str, Sequence[int]]
"""Lists that the host sends to the device, by name."""

Arrived = Mapping[str, Tensor]
"""The same lists on the device, int64, by name."""


class InOrder:
    """Runs device work in the order in which the host requests it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def write(self, values: Values, work: Callable[[Arrived], None]) -> None:
        """Write to tables that forwards read: call `work` with `values` on the device."""
        _, arrived = transfer(values, self.device)
        work(arrived)

    def freeing(self) -> None:
        """Prepare to free rows and slots that a forward may still read."""

    def evicting(self) -> None:
        """Prepare to free slots that left a window but may still be read."""
