"""Attention in torch, over the same index lists that the engine's kernels get.

A buffer for G KV heads has shape [slots, G, width] or [pages, page size, G, width]. T queries have
shape [T, heads, width of K], and outputs [T, heads, width of V]. Row r lists the slots
`kv_indices[kv_indptr[r] : kv_indptr[r + 1]]`. Its queries begin at `qo_indptr[r]`.

A kernel can read outside of its tensors, where torch would raise. Such reads are clamped.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from paritybit.connectors.attention import attend, scores_of
from paritybit.engines.graphs import whole

as_decoding = False
"""Whether a query sees the window that it has when its token is decoded.

A kernel for prefills shows it one key more, and moves a draft's window by its place in the tree.
"""


@dataclass(frozen=True, kw_only=True)
class AttentionLists:
    """The arguments of all kernels, by their names. No served model has `xai_temperature_len`.

    Quantised KV may have a scale for each head in each slot: `k_scales` and `v_scales` have the
    shape of a buffer without its width.
    """

    k_buffer: Tensor
    v_buffer: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    sm_scale: float | None = None
    k_scale: Any = 1.0
    v_scale: Any = 1.0
    k_scales: Tensor | None = None
    v_scales: Tensor | None = None
    logit_cap: float = 0.0
    sinks: Tensor | None = None
    xai_temperature_len: int = -1

    def slots(self, rows: int) -> list[Tensor]:
        """Return the slots of each of the first rows."""
        indices = unbounded(self.kv_indices)
        ends = [max(end, 0) for end in self.kv_indptr[: rows + 1].tolist()]
        return [indices[first:last].long() for first, last in pairwise(ends)]

    def keys_and_values(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of slots."""
        keys = gathered(self.k_buffer, slots) * self.k_scale
        values = gathered(self.v_buffer, slots) * self.v_scale
        if self.k_scales is None or self.v_scales is None:
            return keys, values
        scales = (gathered(one[..., None], slots) for one in (self.k_scales, self.v_scales))
        return keys * next(scales), values * next(scales)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """Attend with queries to keys, of which they see `seen`."""
        return attend(q, keys, values, seen, self.sm_scale, self.logit_cap, self.sinks)

    def log_sums(self, q: Tensor, keys: Tensor, seen: Tensor) -> Tensor:
        """Return the logarithm of the weight of all keys that each query sees, [T, heads]."""
        return scores_of(q, keys, seen, self.sm_scale, self.logit_cap).logsumexp(-1).flatten(1)


@dataclass(frozen=True, kw_only=True)
class DecodeAttention(AttentionLists):
    """Attention with one query per row to all slots that the row lists. Writes to `o`.

    `attn_lse` [rows, heads, splits] gets the logarithm of the weight of all keys in its first split
    if it is -inf everywhere, as it is for a rank that has a part of the keys.
    """

    q: Tensor
    o: Tensor
    attn_lse: Tensor | None = None

    def run(self) -> None:
        """Compute it."""
        bounds = self.kv_indptr[: len(self.q) + 1].long().clamp(min=0)
        counts, indices = bounds.diff().clamp(min=0), unbounded(self.kv_indices)
        if not counts.any():
            self.o.zero_()
            return
        places = torch.arange(int(counts.max()), device=self.q.device)
        seen = places < counts[:, None]
        listed = indices[(bounds[:-1, None] + places).clamp(max=len(indices) - 1)]
        slots = listed.long().where(seen, 0)
        keys, values = self.keys_and_values(slots)
        self.o.copy_(self.attend(self.q, keys, values, seen))
        if self.attn_lse is not None and bool(self.attn_lse.isneginf().all()):
            self.attn_lse[: len(self.q), :, 0] = self.log_sums(self.q, keys, seen)


@dataclass(frozen=True, kw_only=True)
class PrefillAttention(AttentionLists):
    """The arguments of kernels for prefills. A custom mask has an entry per query and key."""

    qo_indptr: Tensor
    custom_mask: Tensor | None = None
    mask_indptr: Tensor | None = None
    is_causal: bool = True
    sliding_window_size: int = -1

    def rows(
        self, size: int, qo_ends: Tensor | None = None
    ) -> Iterator[tuple[int, slice, Tensor, Tensor]]:
        """Yield each row with queries: its index, its queries' slice and numbers from 0, its slots.

        Queries beyond the last of `size` are left out.
        """
        starts = self.qo_indptr.tolist()
        ends = starts[1:] if qo_ends is None else qo_ends.tolist()
        slots = self.slots(len(ends))
        for row, (begin, last) in enumerate(zip(starts, ends, strict=False)):
            first, end = max(begin, 0), min(last, size)
            if end > first:
                places = torch.arange(end - first, device=self.qo_indptr.device)
                yield row, slice(first, end), places, slots[row]

    def mask(self, row: int, count: int, width: int, offset: int = 0) -> Tensor | None:
        """Return the custom mask of a row, [count, width], without its first `offset` columns.

        Entries beyond the end of the mask are False.
        """
        if self.custom_mask is None or self.mask_indptr is None:
            return None
        start, size = int(self.mask_indptr[row]), count * (width + offset)
        flat = self.custom_mask[start : start + size].bool()
        return pad(flat, (0, size - len(flat))).view(count, width + offset)[:, offset:]

    def seen(self, positions: Tensor, width: int, mask: Tensor | None) -> Tensor:
        """Return which of `width` listed keys each query sees. Its own key is at its position."""
        keys = torch.arange(width, device=positions.device)
        seen = torch.ones(len(positions), width, dtype=torch.bool, device=positions.device)
        if mask is not None:
            seen = mask
            if as_decoding:  # Drafts before it in the tree may lie on other paths.
                positions = mask.sum(1) - 1
        elif self.is_causal:
            seen = keys <= positions[:, None]
        if self.sliding_window_size > 0:
            window = self.sliding_window_size - as_decoding
            seen = seen & (positions[:, None] <= keys + window)
        return seen


@dataclass(frozen=True, kw_only=True)
class ExtendAttention(PrefillAttention):
    """Attention to the slots that each row lists, and to the new K and V. Writes to `o_extend`.

    With a window, a query's part of the custom mask begins `window_kv_offsets` keys before the
    first listed key. `lse_extend` [T, heads] gets the logarithm of the weight of all keys. The
    slots or the new keys may be left out.
    """

    q_extend: Tensor
    k_extend: Tensor
    v_extend: Tensor
    o_extend: Tensor
    skip_prefix_custom_mask: bool = True
    window_kv_offsets: Tensor | None = None
    lse_extend: Tensor | None = None
    skip_prefix: bool = False
    skip_extend: bool = False

    def run(self) -> None:
        """Compute it."""
        for row, new, places, listed in self.rows(len(self.q_extend)):
            slots = listed[:0] if self.skip_prefix else listed
            count = 0 if self.skip_extend else len(places)
            prefix, width, offset = len(slots), len(slots) + count, 0
            if self.window_kv_offsets is not None and self.sliding_window_size > 0:
                offset = int(self.window_kv_offsets[row])
            mask = self.mask(row, len(places), width, offset)
            if mask is not None and self.skip_prefix_custom_mask:
                mask = torch.cat([torch.ones_like(mask[:, :prefix]), mask[:, prefix:]], 1)
            parts = list[tuple[Tensor, Tensor]]()
            if prefix:  # Without one, the buffers may hold compressed KV.
                parts.append(self.keys_and_values(slots))
            if not prefix or not self.skip_extend:
                parts.append(
                    (self.k_extend[new][:count].float(), self.v_extend[new][:count].float())
                )
            keys, values = map(torch.cat, zip(*parts, strict=True))
            seen = self.seen(prefix + places, width, mask)
            q = self.q_extend[new]
            self.o_extend[new] = self.attend(q, keys, values, seen).to(self.o_extend.dtype)
            if self.lse_extend is not None:
                self.lse_extend[new] = self.log_sums(q, keys, seen)


@dataclass(frozen=True, kw_only=True)
class UnifiedAttention(PrefillAttention):
    """Attention to the slots that each row lists, which include the new ones. Writes to `o`.

    Row r has the queries from `qo_indptr[r]` to `qo_ends[r]`, or else to `qo_indptr[r + 1]`.
    """

    q: Tensor
    o: Tensor
    prefix_lens: Tensor
    window_start_pos: Tensor | None = None
    qo_ends: Tensor | None = None

    def run(self) -> None:
        """Compute it."""
        prefixes = self.prefix_lens.tolist()
        for row, new, places, slots in self.rows(len(self.q), self.qo_ends):
            positions, mask = prefixes[row] + places, self.mask(row, len(places), len(slots))
            seen = self.seen(positions, len(slots), mask)
            made = self.attend(self.q[new], *self.keys_and_values(slots), seen)
            self.o[new] = made.to(self.o.dtype)


@whole
def attend_in_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    weights: Tensor,
    *,
    cu_seqlens_q: Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: Sequence[int],
    block_table: Tensor | None = None,
    seqused_k: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    **rest: Any,
) -> None:
    """Attend to the keys in the block table, or to `k` of the rows themselves.

    A query without a key gets zeros, with the weight 0.
    """
    out.zero_()
    weights.fill_(-math.inf)
    starts = cu_seqlens_q.long().clamp(0, len(q)).tolist()
    if block_table is not None:
        assert seqused_k is not None
        lengths = seqused_k.long()
        bounds, slots = listed(block_table, torch.zeros_like(lengths), lengths, k.shape[1])
    else:
        assert cu_seqlens_k is not None
        bounds = cu_seqlens_k.long().clamp(0, len(k))
        slots = torch.arange(len(k))
    for row, (first, last) in enumerate(pairwise(starts)):
        mine = slots[int(bounds[row]) : int(bounds[row + 1])]
        if last <= first or not len(mine):
            continue
        keys, values = (gathered(one, mine) for one in (k, v))
        place = torch.arange(len(mine) - (last - first), len(mine))[:, None]
        behind = place - torch.arange(len(mine))
        seen = (behind >= 0) if causal else torch.ones_like(behind, dtype=torch.bool)
        if window_size[0] >= 0:
            seen &= behind <= window_size[0]
        scores = scores_of(q[first:last], keys, seen, softmax_scale, softcap)
        weights[:, first:last] = scores.flatten(1, 2).logsumexp(-1).t()
        made = attend(q[first:last], keys, values, seen, softmax_scale, softcap, sinks)
        out[first:last] = made.to(out.dtype)


def listed(block_table: Tensor, first: Tensor, last: Tensor, page: int) -> tuple[Tensor, Tensor]:
    """Return bounds [R + 1] and the slots of each row's positions from `first` to `last` - 1.

    Beyond the end of a table's row, where torch would raise, its last entry is used.
    """
    counts = (last - first).clamp(min=0)
    bounds = pad(counts.cumsum(0), (1, 0))
    row = torch.arange(len(counts)).repeat_interleave(counts)
    position = torch.arange(len(row)) - bounds[row] + first[row]
    block = (position // page).clamp(max=block_table.shape[1] - 1)
    return bounds, block_table[row, block].long() * page + position % page


def gathered(buffer: Tensor, slots: Tensor) -> Tensor:
    """Return the content of slots in float32, for a buffer [S, ...] or [pages, page size, ...]."""
    if buffer.dim() == 4:
        page = buffer.shape[1]
        slots = slots.clamp(0, buffer.shape[0] * page - 1)
        return buffer[slots // page, slots % page].float()
    rows = buffer.index_select(0, slots.clamp(0, len(buffer) - 1).flatten())
    return rows.float().view(*slots.shape, *buffer.shape[1:])


def unbounded(part: Tensor) -> Tensor:
    """Return a flat tensor, extended to the end of its storage: a kernel only gets its start."""
    rest = part.untyped_storage().nbytes() // part.element_size() - part.storage_offset()
    return part.as_strided((rest,), (1,), part.storage_offset())
