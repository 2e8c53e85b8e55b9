"""Copies between a KV pool and host memory, for sglang on a CPU."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins.modules import found

HOST_POOLS = ("mem_cache.memory_pool_host", "mem_cache.pool_host.mha")
"""The modules that call the compiled copies, by release."""


def stand_in_for_host_copies() -> None:
    """Disable the registration of host memory, and copy with torch in place of a kernel."""
    held: Any = torch.cuda
    held.cudart = lambda: SimpleNamespace(
        cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0
    )
    for name in HOST_POOLS:
        module = found(f"sglang.srt.{name}")
        if module is not None:
            module.transfer_kv_direct = transfer_kv_direct


def transfer_kv_direct(
    src_layers: Sequence[Tensor],
    dst_layers: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Copy rows of tensors to rows of others, as the compiled function of this name does."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices].to(target.device)
