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

ROUNDED = 4
"""How much is added at most, in units of the epsilon, relative to the largest value."""


class Ties(TorchDispatchMode):
    """Adds a rounding to values of which the largest are chosen."""

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation."""
        if function.overloadpacket in CHOOSING and args[0].is_floating_point():
            args = rounded(args[0]), *args[1:]
        return function(*args, **(kwargs or {}))


def rounded(given: Tensor) -> Tensor:
    """Return values with other roundings."""
    generator = torch.Generator(given.device).manual_seed(0)
    drawn = torch.rand(given.shape, generator=generator, device=given.device)
    largest = given.where(given.isfinite(), 0).abs().amax(-1, keepdim=True)
    step = ROUNDED * torch.finfo(given.dtype).eps * largest.where(largest > 0, 1)
    return given + (drawn * step).to(given.dtype)
