"""Collectives of parts with different sizes, which gloo does not have. `one` is a group of ranks.

It has its size, its ranks, the number of this one, and the group of torch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed


def gathered(one: Any, given: Any, dim: int = 0, sizes: Sequence[int] | None = None) -> Any:
    """Return the tensors of all ranks, of these sizes, one after another. Or for each of a list."""
    if not isinstance(given, Tensor):
        return [gathered(one, part, dim, sizes) for part in given]
    lengths = sizes or [len(given)] * one.world_size
    parts = [given.new_empty((size, *given.shape[1:])) for size in lengths]
    parts[one.rank_in_group] = given.contiguous()
    for rank, part in zip(one.ranks, parts, strict=True):
        distributed.broadcast(part, rank, group=one.device_group)
    return torch.cat(parts)


def reduced(one: Any, given: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
    """Return this rank's part of the sum over all ranks."""
    lengths = sizes or [len(given) // one.world_size] * one.world_size
    total, first = given.clone(), sum(lengths[: one.rank_in_group])
    distributed.all_reduce(total, group=one.device_group)
    return total[first : first + lengths[one.rank_in_group]]
