"""Copies lists of integers from the host to the device in one blocking copy."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Name = TypeVar("Name")


def transfer(
    lists: Mapping[Name, Sequence[int]], device: torch.device
) -> tuple[dict[Name, Tensor], dict[Name, Tensor]]:
    """Return every list as an int64 tensor on the host, and on the device.

    All lists cross in one blocking copy, so none is still in flight. On a CPU both dictionaries
    share storage.
    """
    sizes = [len(values) for values in lists.values()]
    together = np.fromiter(chain.from_iterable(lists.values()), np.int64, sum(sizes))
    on_host = torch.from_numpy(together)
    on_device = on_host.to(device)
    host, arrived = (
        dict(zip(lists, both.split_with_sizes(sizes), strict=True)) for both in (on_host, on_device)
    )
    return host, arrived
