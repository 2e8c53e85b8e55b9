"""Copies arrays from the host to a device without waiting."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.int32]


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return a numpy array as a tensor on a device.

    The copy to a GPU uses pinned memory, which torch keeps until the copy is done.
    """
    values = torch.from_numpy(array)
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)
