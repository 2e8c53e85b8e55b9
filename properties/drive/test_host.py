"""Copies between a KV pool and the host, on a CPU."""

import torch

from paritybit.drive.sglang.stand_ins import transfer_kv_direct


def test_rows_of_each_layer_are_copied() -> None:
    sources = [torch.arange(8.0).view(4, 2) + layer for layer in (0, 100)]
    targets = [torch.zeros(5, 2) for _ in sources]
    transfer_kv_direct(sources, targets, torch.tensor([3, 1]), torch.tensor([0, 4]), 1)
    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(target[[0, 4]], source[[3, 1]])
        assert not target[1:4].any()
