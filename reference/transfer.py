"""Lists of integers from the host to the device in one blocking copy."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Name = TypeVar("Name")


def transfer(
    lists: Mapping[Name, Sequence[int]], device: torch.device
) -> tuple[dict[Name, Tensor], dict[Name, Tensor]]:
    """Return every list as an int64 tensor: on the host, and on the device.

    All lists cross in one blocking copy, so that none can still be in flight. On a CPU both
    dictionaries hold the same storage.
    """
    arrays = [np.array(values, dtype=np.int64) for values in lists.values()]
    sizes = [array.size for array in arrays]
    on_host = torch.from_numpy(np.concatenate(arrays))
    on_device = on_host.to(device)
    return (
        dict(zip(lists, on_host.split(sizes), strict=True)),
        dict(zip(lists, on_device.split(sizes), strict=True)),
    )
