"""The flags of checks: raised on the host or on a device, where the host reads them together."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.checks.device.launches import WHOLE, unequal
from harness.lockstep.bits import differ, form


@dataclass(frozen=True)
class Unequal:
    """The flag that two tensors of some pair differ in any bit, which is raised when it is read.

    All pairs, of which there is one at least, are on one device, the two of a pair of one shape.
    The second one is compared as it is once it was copied into the dtype of the first.
    """

    pairs: Sequence[tuple[Tensor, Tensor]]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.pairs[0][0].device

    def alike(self) -> list[tuple[Tensor, Tensor]]:
        """Return the pairs, the two of each of one dtype."""
        return [(one, as_dtype(other, one.dtype)) for one, other in self.pairs]

    def __bool__(self) -> bool:
        """Whether it is raised."""
        return bool(differ(self.alike()))


Flag = Tensor | bool | Unequal


def as_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values in a dtype: themselves where they have it."""
    return values if values.dtype is dtype else values.to(dtype)


def outputs_unequal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Flag:
    """Return whether two outputs differ in any bit, name, shape or dtype."""
    if form(left) != form(right):
        return True
    return Unequal([(left[name], right[name]) for name in left])


def read_flags(flags: Mapping[str, Flag]) -> dict[str, bool]:
    """Return flags by name, those of one device read together."""
    read: dict[str, bool] = {}
    by_device = defaultdict[torch.device, dict[str, Tensor]](dict)
    pairs = defaultdict[torch.device, dict[str, Unequal]](dict)
    for name, flag in flags.items():
        if isinstance(flag, bool):
            read[name] = flag
        elif isinstance(flag, Tensor):
            by_device[flag.device][name] = flag
        elif flag.device.type == "cuda":
            pairs[flag.device][name] = flag
        else:
            by_device[flag.device][name] = differ(flag.alike())
    for device in {**by_device, **pairs}:
        raised, of_device = pairs[device], by_device[device]
        values = [flag.view(1) for flag in of_device.values()]
        if raised:
            values.append(unequal([in_kernel(flag) for flag in raised.values()]))
        joined = values[0] if len(values) == 1 else torch.cat(values)
        read |= dict(zip([*of_device, *raised], joined.tolist(), strict=True))
    return read


def in_kernel(flag: Unequal) -> list[tuple[Tensor, Tensor]]:
    """Return the pairs of a flag as a kernel compares them: those of whole numbers as they are."""
    return [
        (one, other)
        if one.dtype in WHOLE and other.dtype in WHOLE
        else (one, as_dtype(other, one.dtype))
        for one, other in flag.pairs
    ]
