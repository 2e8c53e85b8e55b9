"""Copies lists of integers from the host to the device in one blocking copy."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Name = TypeVar("Name")
Numbers = NDArray[np.integer[Any]]


def transfer(
    lists: Mapping[Name, Sequence[int] | Numbers], device: torch.device
) -> tuple[dict[Name, Tensor], dict[Name, Tensor]]:
    """Return every list as an int64 tensor on the host, and on the device.

    All lists cross in one blocking copy, so none is still in flight. On a CPU both dictionaries
    share storage.
    """
    sizes = [len(values) for values in lists.values()]
    if any(isinstance(values, np.ndarray) for values in lists.values()):
        together = np.concatenate([np.asarray(values, np.int64) for values in lists.values()])
    else:
        together = np.fromiter(chain.from_iterable(lists.values()), np.int64, sum(sizes))
    on_host = torch.from_numpy(together)
    host = dict(zip(lists, on_host.split_with_sizes(sizes), strict=True))
    if device.type == "cpu":
        return host, dict(host)
    on_device = on_host.to(device)
    return host, dict(zip(lists, on_device.split_with_sizes(sizes), strict=True))
