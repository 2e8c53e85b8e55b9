"""The kernels of vLLM's Triton and FlashAttention backends in torch, with the same block tables.

A cache has shape [blocks, block size, heads, width], and queries [T, heads, width].
"""

import math
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins import attention
from paritybit.drive.stand_ins.attention import (
    DecodeAttention,
    UnifiedAttention,
    attend_in_parts,
    listed,
)


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
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    k_scale_cache: Tensor | None = None,
    v_scale_cache: Tensor | None = None,
    **rest: Any,
) -> None:
    """Attend with the queries of each row to the keys in its row of the block table.

    Quantised KV has a scale for each head, the same for all rows, [rows, heads]; or one for each
    slot and head, [blocks, block size, heads], whose bytes follow those of the head.
    """
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
        "k_buffer": k[..., : q.shape[-1]],
        "v_buffer": v[..., : out.shape[-1]],
        "kv_indptr": bounds,
        "kv_indices": slots,
        "sm_scale": softmax_scale,
        "logit_cap": softcap,
        "sinks": sinks,
        "k_scale": 1.0 if k_descale is None else k_descale[0, :, None],
        "v_scale": 1.0 if v_descale is None else v_descale[0, :, None],
        "k_scales": k_scale_cache,
        "v_scales": v_scale_cache,
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


def attend_compressed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    weights: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    parts: Tensor,
    count: int,
    scale: float,
    *rest: Any,
    **named: Any,
) -> None:
    """Attend with one query per row to the keys in its row of the block table.

    Nothing that is served reads the logarithms of the weights.
    """
    bounds, slots = listed(block_table, torch.zeros_like(lengths), lengths, k.shape[1])
    DecodeAttention(
        q=q, o=out, sm_scale=scale, k_buffer=k, v_buffer=v, kv_indptr=bounds, kv_indices=slots
    ).run()


def store_compressed(
    latent: Tensor, key: Tensor, cache: Tensor, slot_mapping: Tensor, **named: Any
) -> None:
    """Write the latent vectors and keys of all tokens whose slot is not negative."""
    live = (slot_mapping >= 0).nonzero().flatten()
    slots, page = slot_mapping[live], cache.shape[1]
    cache[slots // page, slots % page] = torch.cat((latent, key), -1)[live].to(cache.dtype)


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    return_softmax_lse: bool = False,
    **given: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend as FlashAttention. Returns the output, and the logarithm of its weight [heads, T]."""
    weights = torch.empty(q.shape[1], len(q), dtype=torch.float32)
    attend_in_parts(q, k, v, out, weights, **given)
    return (out, weights) if return_softmax_lse else out


def corrected(
    out: Tensor, made: Tensor, weights: Tensor, total: Tensor, rank: int, *rest: Any, **named: Any
) -> None:
    """Scale the output of a rank [T, heads, width] by its share of the weights of all ranks.

    `weights` are logarithms [ranks, T, heads], and `total` gets that of their sum.
    """
    weights = weights.masked_fill(~weights.isfinite(), -math.inf)
    total.copy_(weights.logsumexp(0))
    share = (weights[rank] - total).exp().nan_to_num(0.0)
    made.copy_((out * share[..., None]).masked_fill(share[..., None] == 0, 0.0))


def store(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kind: str = "auto",
    *scales: Tensor,
    **named: Any,
) -> None:
    """Write the keys and values of all tokens whose slot is not negative.

    Quantised ones are divided by their scales first.
    """
    live = (slot_mapping >= 0).nonzero().flatten()
    slots, page = slot_mapping[live], key_cache.shape[1]
    for at, (new, cache) in enumerate(((key, key_cache), (value, value_cache))):
        mine = new[live]
        if cache.dtype.itemsize == 1:
            most = torch.finfo(cache.dtype).max
            mine = (mine / scales[at]).clamp(-most, most)
        cache[slots // page, slots % page] = mine.to(cache.dtype)
