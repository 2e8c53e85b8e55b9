"""Memory that is only allocated holds no zeros by luck."""

import torch
from torch import Tensor

from paritybit.drive.stand_ins.installing import LEFT, spoiled


def test_new_memory_holds_no_zeros_by_luck() -> None:
    kept = torch.ones(2, dtype=torch.int64)
    for made in (
        spoiled(torch.empty)(2, dtype=torch.int32),
        spoiled(torch.empty_like)(kept),
        spoiled(Tensor.new_empty)(kept, 2),
    ):
        assert made.tolist() == [LEFT, LEFT]
    assert spoiled(torch.zeros)(1).tolist() == [0]  # Numbers of another kind are left alone.
