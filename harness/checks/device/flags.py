"""The flags of properties, on the host or on a device. The host reads all of a device at once."""

from collections import defaultdict
from collections.abc import Mapping

import torch
from paritybit.harness.checks.device import launches
from paritybit.harness.checks.device.launches import Question
from paritybit.harness.checks.device.unequal import Unequal
from paritybit.harness.lockstep.bits import form
from torch import Tensor

Flag = Tensor | bool | Unequal | Question


def outputs_unequal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Flag:
    """Return whether two outputs differ in any bit, name, shape or dtype."""
    if form(left) != form(right):
        return True
    return Unequal([(left[name], right[name]) for name in left])


def read_flags(flags: Mapping[str, Flag]) -> dict[str, bool]:
    """Return flags by name as bools. Those on one device are read together."""
    read: dict[str, bool] = {}
    by_device = defaultdict[torch.device, dict[str, Tensor | Unequal | Question]](dict)
    for name, flag in flags.items():
        if isinstance(flag, bool):
            read[name] = flag
        elif isinstance(flag, Tensor) or launches.asks_kernels(flag.device):
            by_device[flag.device][name] = flag
        else:
            read[name] = bool(flag)
    for of_device in by_device.values():
        read |= read_together(of_device)
    return read


def read_together(flags: Mapping[str, Tensor | Unequal | Question]) -> dict[str, bool]:
    """Return flags on one device by name. Kernels compute those that are not tensors."""
    ready = dict[str, Tensor]()
    questions, unequal = dict[str, Question](), dict[str, Unequal]()
    for name, flag in flags.items():
        if isinstance(flag, Question):
            questions[name] = flag
        elif isinstance(flag, Tensor):
            ready[name] = flag
        else:
            unequal[name] = flag
    values: list[bool] = torch.stack([*ready.values()]).tolist() if ready else []
    if questions or unequal:
        values += launches.answers([*questions.values()], [*unequal.values()])
    return dict(zip([*ready, *questions, *unequal], values, strict=True))
