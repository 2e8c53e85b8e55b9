"""Attention in torch, over the same index lists that the engine's kernels get.

Shapes: T queries, R rows, H query heads, G KV heads, S slots. A buffer has shape [S, G, width] or
[pages, page size, G, width]. Queries have shape [T, H, width of K], and outputs [T, H, width of V].
Row r lists the slots `kv_indices[kv_indptr[r] : kv_indptr[r + 1]]`. Its queries begin at
`qo_indptr[r]`.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

LOWEST = -1e30
"""A score that takes no weight from any other, except from those of keys that are not seen."""


def decode_attention(
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    sm_scale: float,
    k_scale: Any = 1.0,
    v_scale: Any = 1.0,
    logit_cap: float = 0.0,
    sinks: Tensor | None = None,
    xai_temperature_len: int = -1,
) -> None:
    """Attend with one query per row to all slots that the row lists. Writes to `o`."""
    kv_indices = unbounded(kv_indices)
    ends = [max(end, 0) for end in kv_indptr[: q.shape[0] + 1].tolist()]
    lists = [kv_indices[first:last] for first, last in pairwise(ends)]
    longest = max(map(len, lists), default=0)
    if not longest:
        o.zero_()
        return
    slots = pad_sequence(lists, batch_first=True)
    counts = torch.tensor([len(listed) for listed in lists], device=q.device)
    seen = torch.arange(longest, device=q.device) < counts[:, None]
    keys, values = (gathered(buffer, slots).transpose(1, 2) for buffer in (k_buffer, v_buffer))
    grouped = q.float().view(len(lists), keys.shape[1], -1, q.shape[-1])
    scores = grouped @ keys.transpose(2, 3) * (sm_scale * k_scale)
    temperature = _temperature(counts - 1, xai_temperature_len)
    weights = _weights(scores, seen, logit_cap, sinks, temperature)
    o.copy_((weights @ values).reshape(o.shape) * v_scale)


def extend_attention(
    q_extend: Tensor,
    k_extend: Tensor,
    v_extend: Tensor,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    custom_mask: Tensor | None = None,
    is_causal: bool = True,
    mask_indptr: Tensor | None = None,
    k_scale: Any = 1.0,
    v_scale: Any = 1.0,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    skip_prefix_custom_mask: bool = True,
    sliding_window_size: int = -1,
    sinks: Tensor | None = None,
    window_kv_offsets: Tensor | None = None,
    xai_temperature_len: int = -1,
) -> None:
    """Attend to the slots that each row lists, and to the new K and V. Writes to `o_extend`.

    A custom mask has a line per query over all keys of its row. With a window, the line begins
    `window_kv_offsets` keys before the first listed key.
    """
    scale = q_extend.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    kv_indices = unbounded(kv_indices)
    keys, masks = kv_indptr.tolist(), _starts(mask_indptr, custom_mask)
    offsets = _starts(window_kv_offsets if sliding_window_size > 0 else None, custom_mask)
    for row, new, places in _rows(qo_indptr, len(q_extend)):
        slots = kv_indices[keys[row] : keys[row + 1]].long()
        prefix, width = len(slots), len(slots) + len(places)
        seen = torch.ones(len(places), width, dtype=torch.bool, device=places.device)
        if masks is not None and custom_mask is not None:
            offset = 0 if offsets is None else offsets[row]
            lines = _lines(custom_mask, masks[row], len(places), width + offset)[:, offset:]
            hidden = prefix if skip_prefix_custom_mask else 0
            seen[:, hidden:] = lines[:, hidden:]
        elif is_causal:
            seen = _causal(prefix + places, width)
        seen &= _windowed(prefix + places, width, sliding_window_size)
        o_extend[new] = _attend(
            q_extend[new],
            torch.cat([gathered(k_buffer, slots) * k_scale, k_extend[new].float()]),
            torch.cat([gathered(v_buffer, slots) * v_scale, v_extend[new].float()]),
            seen,
            scale,
            logit_cap,
            sinks,
            _temperature(prefix + places, xai_temperature_len),
        ).to(o_extend.dtype)


def unified_attention(
    q: Tensor,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    prefix_lens: Tensor,
    k_scale: Any = 1.0,
    v_scale: Any = 1.0,
    custom_mask: Tensor | None = None,
    mask_indptr: Tensor | None = None,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    is_causal: bool = True,
    sliding_window_size: int = -1,
    sinks: Tensor | None = None,
    window_start_pos: Tensor | None = None,
    xai_temperature_len: int = -1,
    qo_ends: Tensor | None = None,
) -> None:
    """Attend to the slots that each row lists, which include the new ones. Writes to `o`.

    Row r has the queries from `qo_indptr[r]` to `qo_ends[r]`, or else to `qo_indptr[r + 1]`.
    """
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    kv_indices = unbounded(kv_indices)
    keys, prefixes = kv_indptr.tolist(), prefix_lens.tolist()
    masks = _starts(mask_indptr, custom_mask)
    for row, new, places in _rows(qo_indptr, len(q), qo_ends):
        slots, positions = kv_indices[keys[row] : keys[row + 1]].long(), prefixes[row] + places
        seen = torch.ones(len(places), len(slots), dtype=torch.bool, device=places.device)
        if masks is not None and custom_mask is not None:
            seen = _lines(custom_mask, masks[row], len(places), len(slots))
        elif is_causal:
            seen = _causal(positions, len(slots))
        seen &= _windowed(positions, len(slots), sliding_window_size)
        o[new] = _attend(
            q[new],
            gathered(k_buffer, slots) * k_scale,
            gathered(v_buffer, slots) * v_scale,
            seen,
            scale,
            logit_cap,
            sinks,
            _temperature(positions, xai_temperature_len),
        ).to(o.dtype)


def _rows(
    qo_indptr: Tensor, size: int, qo_ends: Tensor | None = None
) -> Iterator[tuple[int, slice, Tensor]]:
    """Yield each row with queries: its index, the slice of its queries, and their indices.

    A kernel can read beyond the last of `size` queries, and torch would raise. These are left out.
    """
    starts = qo_indptr.tolist()
    spans = pairwise(starts) if qo_ends is None else zip(starts, qo_ends.tolist(), strict=True)
    for row, (begin, last) in enumerate(spans):
        first, end = max(begin, 0), min(last, size)
        if end > first:
            yield row, slice(first, end), torch.arange(end - first, device=qo_indptr.device)


def _starts(starts: Tensor | None, custom_mask: Tensor | None) -> list[int] | None:
    """Return starts in a custom mask as a list, or None without a custom mask."""
    return None if starts is None or custom_mask is None else [int(one) for one in starts.tolist()]


def _causal(positions: Tensor, width: int) -> Tensor:
    """Return which of `width` listed keys each query sees. Its own key is at its position."""
    return torch.arange(width, device=positions.device) <= positions[:, None]


fewer_keys = 0
"""The number of keys that a prefill reads less than the kernel."""


def _windowed(positions: Tensor, width: int, window: int) -> Tensor:
    """Return which of `width` listed keys are in the window of each query."""
    if window <= 0:
        return torch.ones(len(positions), width, dtype=torch.bool, device=positions.device)
    return positions[:, None] <= torch.arange(width, device=positions.device) + window - fewer_keys


def _attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor,
    scale: float,
    logit_cap: float,
    sinks: Tensor | None,
    temperature: Tensor | None,
) -> Tensor:
    """Attend with the queries of one row. `seen` is [T, keys]. Returns [T, H, width of V]."""
    grouped = q.float().view(q.shape[0], keys.shape[1], -1, q.shape[-1])
    scores = torch.einsum("tghd,lgd->tghl", grouped, keys) * scale
    weights = _weights(scores, seen, logit_cap, sinks, temperature)
    return torch.einsum("tghl,lgd->tghd", weights, values).reshape(q.shape[0], q.shape[1], -1)


def _weights(
    scores: Tensor,
    seen: Tensor,
    logit_cap: float,
    sinks: Tensor | None,
    temperature: Tensor | None,
) -> Tensor:
    """Return the weights of keys from scores [T, G, H / G, keys]. `seen` is [T, keys].

    A sink takes weight without a value. No key gives zeros: the rest then has all weight.
    """
    if logit_cap > 0:
        scores = logit_cap * (scores / logit_cap).tanh()
    if temperature is not None:
        scores = scores * temperature.view(-1, 1, 1, 1)
    scores = scores.masked_fill(~seen[:, None, None, :], -math.inf)
    rest = scores.new_tensor(LOWEST)
    if sinks is not None:
        rest = sinks.float().view(scores.shape[1], -1, 1)
    columns = torch.cat([scores, rest.expand(*scores.shape[:-1], 1)], -1)
    return columns.softmax(-1)[..., :-1]


def _temperature(positions: Tensor, length: int) -> Tensor | None:
    """Return the factor for the scores of queries at these positions, or None."""
    if length <= 0:
        return None
    scaled = positions.float().clamp(min=1.0).log2() / math.log2(length)
    return scaled.where(positions > length, scaled.new_ones(()))


def gathered(buffer: Tensor, slots: Tensor) -> Tensor:
    """Return the content of slots in float32, for a buffer [S, ...] or [pages, page size, ...].

    A kernel can read outside of its buffer, and torch would raise. Such a slot is clamped.
    """
    if buffer.dim() == 4:
        page = buffer.shape[1]
        slots = slots.clamp(0, buffer.shape[0] * page - 1)
        return buffer[slots // page, slots % page].float()
    rows = buffer.index_select(0, _inside(slots, buffer).flatten())
    return rows.float().view(*slots.shape, *buffer.shape[1:])


def _lines(custom_mask: Tensor, start: int, count: int, width: int) -> Tensor:
    """Return the lines of a flat mask, [count, width]. Entries beyond its end are False."""
    flat = custom_mask[start : start + count * width].bool()
    flat = torch.nn.functional.pad(flat, (0, count * width - len(flat)))
    return flat.view(count, width)


def unbounded(part: Tensor) -> Tensor:
    """Return a flat tensor extended to the end of its storage, as a kernel only gets its start."""
    rest = part.untyped_storage().nbytes() // part.element_size() - part.storage_offset()
    return part.as_strided((rest,), (1,), part.storage_offset())


def _inside(indices: Tensor, indexed: Tensor) -> Tensor:
    """Clamp indices to the first axis of a tensor."""
    return indices.clamp(0, indexed.shape[0] - 1)
