"""Attention to the keys that an indexer chose, in torch, and what kernels of indexers compute.

T queries have K chosen slots each, [T, K]. A negative one stands for none.
"""

from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins import attention


def chosen(
    q: Tensor, parts: list[Tensor], slots: Tensor, counts: Tensor | None, scale: float, width: int
) -> Tensor:
    """Attend to the first `counts` chosen slots of each query. Returns [T, heads, width].

    The key of a slot is joined from `parts`, each [slots, n]. Its value is the start of its key.
    """
    seen = slots >= 0
    if counts is not None:
        seen = seen & (torch.arange(slots.shape[1], device=slots.device) < counts[:, None])
    places = slots.long().where(seen, 0)
    keys = torch.cat([attention.gathered(part[:, None], places) for part in parts], -1)
    return attention.attend(q, keys, keys[..., :width], seen, scale).to(q.dtype)


def attended_sparsely(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: None = None,
    topk_length: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None, None]:
    """Attend as FlashMLA to chosen slots, [T, 1, K], of a pool [slots, 1, n]."""
    assert attn_sink is None, "no served model has one"
    return chosen(q, [kv.flatten(1)], indices[:, 0], topk_length, sm_scale, d_v), None, None


def attended(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    qv: Tensor,
    page_table: Tensor,
    cache_seqlens: Tensor,
    softmax_scale: float,
    softcap: float = 0.0,
    **_: Any,
) -> Tensor:
    """Attend as FlashAttention to chosen slots of compressed KV, in pages of one slot."""
    assert not softcap, "no served model has one"
    parts = [v_cache.flatten(1), k_cache.flatten(1)]
    both = torch.cat((qv, q), -1)
    return chosen(both, parts, page_table, cache_seqlens, softmax_scale, v_cache.shape[-1])


def rotated(x: Tensor) -> Tensor:
    """Return the Hadamard transform of the last axis, which has 2^n entries, of length one."""
    matrix = torch.ones(1, 1, dtype=x.dtype, device=x.device)
    while len(matrix) < x.shape[-1]:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    turned: Tensor = x @ matrix * x.shape[-1] ** -0.5
    return turned


class Indexed(Tensor):
    """A tensor of a CPU that says it is on a device with a number, as a tensor of a GPU does."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    device = torch.device("cpu", 0)
