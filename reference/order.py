"""The order of device work outside forwards. Here, each piece of work ends before the next.

An engine that overlaps steps replaces this order with one that has its own waits.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Name = TypeVar("Name")

HostValues = Mapping[str, Sequence[int]]
"""Lists that the host sends to the device, by name."""

Arrived = Mapping[str, Tensor]
"""The same lists on the device, int64, by name."""


class InOrder:
    """Runs device work in the order in which the host requests it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def write(self, values: HostValues, work: Callable[[Arrived], None]) -> None:
        """Write to tables that forwards read: call `work` with `values` on the device."""
        _, arrived = transfer(values, self.device)
        work(arrived)

    def freeing(self) -> None:
        """Prepare to free rows and slots that a forward may still read."""

    def evicting(self) -> None:
        """Prepare to free slots that left a window but may still be read."""


def transfer(
    lists: Mapping[Name, Sequence[int]], device: torch.device
) -> tuple[dict[Name, Tensor], dict[Name, Tensor]]:
    """Return every list as an int64 tensor on the host, and on the device.

    All lists cross in one blocking copy, so none is still in flight. On a CPU both dictionaries are
    the same.
    """
    sizes = [len(values) for values in lists.values()]
    together = torch.from_numpy(
        np.fromiter(chain.from_iterable(lists.values()), np.int64, sum(sizes))
    )

    def split(values: Tensor) -> dict[Name, Tensor]:
        return dict(zip(lists, values.split_with_sizes(sizes), strict=True))

    on_host = split(together)
    return on_host, on_host if device.type == "cpu" else split(together.to(device))
