"""Attention to the keys that an indexer chose, in torch, and what kernels of indexers compute.

T queries have K chosen slots each, [T, K]. A negative one stands for none.
"""

import math
from typing import Any

import torch
from torch import Tensor

from paritybit.connectors.attention import attend
from paritybit.connectors.vllm.pools import of_indexer
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
    return attend(q, keys, keys[..., :width], seen, scale).to(q.dtype)


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


def attended_by_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_v: Tensor,
    seqused_k: Tensor,
    block_table: Tensor,
    softmax_scale: float,
    **_: Any,
) -> Tensor:
    """Attend as vLLM calls FlashAttention, with one query for each row of chosen slots."""
    return attended(q, k, v, q_v, block_table, seqused_k, softmax_scale)


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


class Filled(Tensor):
    """A tensor in which a graph records that a part is set to a number."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def __setitem__(self, place: Any, value: Any) -> None:
        if isinstance(value, int):
            self[place].fill_(value)
        else:
            super().__setitem__(place, value)


MOST = float(torch.finfo(torch.float8_e4m3fn).max)
LEAST = 1e-4
"""The largest float of eight bits, and the smallest one of a row that is not zero."""


def quantised(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    """Return rows as floats of eight bits, and the scale of each, a power of two, [..., 1]."""
    scale = (x.float().abs().amax(-1, keepdim=True).clamp(min=LEAST) / MOST).log2().ceil().exp2()
    return (x / scale).clamp(-MOST, MOST).to(torch.float8_e4m3fn), scale


def store_index(k: Tensor, cache: Tensor, slot_mapping: Tensor, *_: Any) -> None:
    """Quantise the keys of an indexer, and write those whose slot is not negative."""
    live = (slot_mapping >= 0).nonzero().flatten()
    slots, page = slot_mapping[live], cache.shape[1]
    for part, new in zip(of_indexer(cache)[0], quantised(k[live]), strict=True):
        part[slots // page, slots % page] = new


def gather_index(
    cache: Tensor, k: Tensor, scales: Tensor, block_table: Tensor, cu_seq_lens: Tensor
) -> None:
    """Copy the keys of an indexer and their scales from the blocks of each row."""
    counts, page = cu_seq_lens.diff().long(), cache.shape[1]
    row = torch.arange(len(counts)).repeat_interleave(counts)
    position = torch.arange(len(row)) - cu_seq_lens[row]
    place = block_table[row, position // page].long(), position % page
    (keys, factors), _ = of_indexer(cache)
    k[: len(row)] = keys[place]
    scales.view(torch.float32)[: len(row)] = factors[place]


def scores_of(q: Tensor, keys: Tensor, scales: Tensor, weights: Tensor) -> Tensor:
    """Return the score of each key for each query, [T, L]. Keys are [L, n] or [T, L, n]."""
    of_keys = "ld" if keys.dim() == 2 else "tld"
    products = torch.einsum(f"thd,{of_keys}->thl", q.float(), keys.float()).relu()
    return torch.einsum("thl,th->tl", products, weights.float()) * scales


def scores(
    q: tuple[Tensor, None], kv: tuple[Tensor, Tensor], weights: Tensor, starts: Tensor,
    ends: Tensor, most: int,
) -> Tensor:  # fmt: skip
    """Return the scores of the keys of each query, from `starts` to `ends`, [T, most]."""
    place = (starts[:, None] + torch.arange(most)).clamp(max=len(kv[0]) - 1).long()
    found = scores_of(q[0], *kv, weights).gather(1, place)
    return found.where(torch.arange(most) < (ends - starts)[:, None], -math.inf)


def scores_of_pages(
    q: tuple[Tensor, None],
    cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    *_: Any,
    max_model_len: int,
    **__: Any,
) -> Tensor:
    """Return the scores of the keys in each row's blocks, [rows * queries, max_model_len].

    Queries are [rows, queries, heads, n].
    """
    rows, queries = q[0].shape[:2]
    page = cache.shape[1]
    position = torch.arange(min(max_model_len, block_tables.shape[1] * page))
    place = block_tables[:, position // page].long(), (position % page).expand(rows, -1)
    keys, scales = (one[place] for one in of_indexer(cache.squeeze(2))[0])
    found = torch.stack(
        [
            scores_of(q[0][:, at], keys, scales[..., 0], weights.unflatten(0, (rows, -1))[:, at])
            for at in range(queries)
        ],
        1,
    )
    lengths = context_lens.expand(rows, queries)
    found = found.where(position < lengths[..., None], -math.inf)
    rest = max_model_len - len(position)
    return torch.nn.functional.pad(found, (0, rest), value=-math.inf).flatten(0, 1)


def best(scores: Tensor, lengths: Tensor, indices: Tensor, most: int) -> None:
    """Write the places of the `most` largest scores among the first `lengths` of each row.

    The rest of a row of `indices` gets -1.
    """
    count = min(most, scores.shape[1])
    seen = torch.arange(scores.shape[1]) < lengths.flatten()[: len(scores), None]
    values, places = scores.masked_fill(~seen, -math.inf).topk(count, -1)
    indices[: len(scores)] = -1
    indices[: len(scores), :count] = places.int().masked_fill(values == -math.inf, -1)
