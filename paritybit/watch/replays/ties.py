"""Lets rounding decide what an engine chooses among values that are nearly equal.

An indexer chooses the keys with the largest scores, and a router experts. Several scores are often
equal, such as zero, and which of them is chosen depends on the shape of a batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

CHOOSING = {torch.ops.aten.topk, torch.ops.aten.sort, torch.ops.aten.argsort, torch.ops.aten.argmax}
"""The operations that choose the largest of their first argument."""


SUMMED = 4 * torch.finfo(torch.float32).eps
"""What another order of sums in float32 changes at most, relative to the largest value."""


class Ties(TorchDispatchMode):
    """Rounds values of which the largest are chosen in another way, and as after another sum."""

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation."""
        if function.overloadpacket in CHOOSING and args:
            args = rounded(args[0]), *args[1:]
        return function(*args, **(kwargs or {}))


def rounded(given: Tensor) -> Tensor:
    """Return values with other roundings, or unchanged if their type has no such ones."""
    if not given.is_floating_point() or given.element_size() < 2 or not given.numel():
        return given
    generator = torch.Generator(given.device).manual_seed(0)
    drawn = torch.rand(given.shape, generator=generator, device=given.device)
    size = given.where(given.isfinite(), 0).abs()
    summed = SUMMED * size.amax(-1, keepdim=True)
    step = torch.finfo(given.dtype).eps * size + summed.where(summed > 0, SUMMED)
    return given + (drawn * step).to(given.dtype)
