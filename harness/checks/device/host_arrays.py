"""What the host counted out, taken to the device without waiting for it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.int32]


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array of numbers as a tensor of a device.

    To a GPU it goes through pinned memory, which torch keeps until the copy is done.
    """
    values = torch.from_numpy(array)
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)
