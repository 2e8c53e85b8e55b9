"""The flags of checks: raised on the host or on a device, where the host reads them together."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.checks.device import launches
from harness.checks.device.launches import WHOLE, Pairs, Question
from harness.lockstep.bits import differ, form


@dataclass(frozen=True)
class Unequal:
    """The flag that two tensors of some pair differ in any bit, which is raised when it is read.

    All pairs, of which there is one at least, are on one device, the two of a pair of one shape.
    The second one is compared as it is once it was copied into the dtype of the first.
    """

    pairs: Pairs

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


Flag = Tensor | bool | Unequal | Question


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
    by_device = defaultdict[torch.device, dict[str, Tensor | Unequal | Question]](dict)
    for name, flag in flags.items():
        if isinstance(flag, bool):
            read[name] = flag
        else:
            by_device[flag.device][name] = flag
    for of_device in by_device.values():
        read |= read_together(of_device)
    return read


def read_together(flags: Mapping[str, Tensor | Unequal | Question]) -> dict[str, bool]:
    """Return flags of one device by name."""
    ready = dict[str, Tensor]()
    questions, unequal = dict[str, Question](), dict[str, Pairs]()
    for name, flag in flags.items():
        if isinstance(flag, Question):
            questions[name] = flag
        elif isinstance(flag, Tensor):
            ready[name] = flag
        elif launches.asks_kernels(flag.device):
            unequal[name] = in_kernel(flag.pairs)
        else:
            ready[name] = differ(flag.alike())
    values = [torch.stack([*ready.values()])] if ready else []
    if questions or unequal:
        values.append(launches.answers([*questions.values()], [*unequal.values()]))
    joined = values[0] if len(values) == 1 else torch.cat(values)
    return dict(zip([*ready, *questions, *unequal], joined.tolist(), strict=True))


def in_kernel(pairs: Pairs) -> Pairs:
    """Return pairs as a kernel compares them: those of whole numbers as they are."""
    return [
        (one, other)
        if one.dtype in WHOLE and other.dtype in WHOLE
        else (one, as_dtype(other, one.dtype))
        for one, other in pairs
    ]
