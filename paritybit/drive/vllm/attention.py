"""The kernels of vLLM's Triton attention backend in torch, with the same block tables.

A cache has shape [blocks, block size, heads, width], and queries [T, heads, width].
"""

from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins import attention
from paritybit.drive.stand_ins.attention import DecodeAttention, UnifiedAttention


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    cu_seqlens_q: Tensor,
    seqused_k: Tensor,
    softmax_scale: float,
    window_size: tuple[int, int],
    block_table: Tensor,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    **rest: Any,
) -> None:
    """Attend with the queries of each row to the keys in its row of the block table."""
    starts, ends = cu_seqlens_q.long().clamp(0, len(q)).unfold(0, 2, 1).unbind(1)
    rows = (ends > starts).nonzero().flatten()
    if not len(rows):
        return
    starts, ends, lengths = starts[rows], ends[rows], seqused_k[rows].long()
    window = int(window_size[0])
    cached = (lengths - (ends - starts)).clamp(min=0)
    first = (cached - window).clamp(min=0) if window >= 0 else torch.zeros_like(cached)
    bounds, slots = listed(block_table[rows], first, lengths, k.shape[1])
    given: dict[str, Any] = {
        "k_buffer": k,
        "v_buffer": v,
        "kv_indptr": bounds,
        "kv_indices": slots,
        "sm_scale": softmax_scale,
        "logit_cap": softcap,
        "sinks": sinks,
    }
    if bool((ends - starts == 1).all()):
        made = torch.empty_like(out[starts])
        DecodeAttention(q=q[starts], o=made, **given).run()
        out[starts] = made
        return
    UnifiedAttention(
        q=q,
        o=out,
        qo_indptr=starts,
        qo_ends=ends,
        prefix_lens=cached - first,
        sliding_window_size=window if window < 0 else window + attention.as_decoding,
        **given,
    ).run()


def listed(block_table: Tensor, first: Tensor, last: Tensor, page: int) -> tuple[Tensor, Tensor]:
    """Return bounds [R + 1] and the slots of each row's positions from `first` to `last` - 1.

    Beyond the end of a table's row, where torch would raise, its last entry is used.
    """
    counts = (last - first).clamp(min=0)
    bounds = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    row = torch.arange(len(counts)).repeat_interleave(counts)
    position = torch.arange(len(row)) - bounds[row] + first[row]
    block = (position // page).clamp(max=block_table.shape[1] - 1)
    return bounds, block_table[row, block].long() * page + position % page


def store(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *rest: Any,
    **named: Any,
) -> None:
    """Write the keys and values of all tokens whose slot is not negative."""
    live = (slot_mapping >= 0).nonzero().flatten()
    slots, page = slot_mapping[live], key_cache.shape[1]
    key_cache[slots // page, slots % page] = key[live].to(key_cache.dtype)
    value_cache[slots // page, slots % page] = value[live].to(value_cache.dtype)
