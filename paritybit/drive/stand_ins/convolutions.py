"""Short convolutions in torch, over the states that sglang's kernels get."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    query_start_loc: Any = None,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    conv_states: Any = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    **_: Any,
) -> Tensor:
    """Convolve prompts, [channels, T], with `weight`, [channels, width], and update their states.

    The inputs of row r begin at `query_start_loc[r]`. Its state, [channels, width - 1], has the
    last ones. It may have room for more, which drafts use. Without `has_initial_state`, no row
    continues from its state.
    """
    out, kept = torch.zeros_like(x), weight.shape[1] - 1
    bounds, slots = query_start_loc.tolist(), cache_indices.tolist()
    old = [False] * len(slots) if has_initial_state is None else has_initial_state.tolist()
    for (first, end), slot, goes_on in zip(pairwise(bounds), slots, old, strict=True):
        if slot == pad_slot_id or end <= first:
            continue
        state = conv_states[slot] if goes_on else torch.zeros_like(conv_states[slot])
        inputs = torch.cat((state[:, :kept].to(x.dtype), x[:, first:end]), 1)
        out[:, first:end] = torch.conv1d(inputs, weight[:, None], bias, groups=len(weight))
        conv_states[slot, :, :kept] = inputs[:, -kept:].to(conv_states.dtype)
    return torch.nn.functional.silu(out) if activation else out


def convolved_once(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
    pad_slot_id: int = -1,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """Convolve one input per row, [R, channels], with `weight`, and update the states of rows.

    With drafts, a row has several inputs, as in `convolved`. Its state then also has them, and it
    begins at the input that was accepted last.
    """
    assert cache_seqlens is None, "states are no rings here"
    kept = weight.shape[1] - 1
    if num_accepted_tokens is not None and query_start_loc is not None:
        given = x, conv_state, weight, bias, activation, conv_state_indices
        return with_drafts(*given, num_accepted_tokens, query_start_loc, pad_slot_id)
    conv_state_indices, conv_state = conv_state_indices.flatten(), conv_state[..., :kept]
    live = conv_state_indices != pad_slot_id
    slots = conv_state_indices.long().clamp(min=0)
    inputs = torch.cat((conv_state[slots].to(x.dtype), x[:, :, None]), 2)
    conv_state[slots[live]] = inputs[live][:, :, 1:].to(conv_state.dtype)
    out = (inputs * weight).sum(2) + (0 if bias is None else bias)
    return torch.nn.functional.silu(out) if activation else out


def with_drafts(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    slots: Tensor,
    accepted: Tensor,
    starts: Tensor,
    pad: int,
) -> Tensor:
    """Convolve the inputs of rows with drafts, [T, channels]: see `convolved_once`."""
    out, kept = torch.zeros_like(x), weight.shape[1] - 1
    first_slots = slots[:, 0] if slots.dim() > 1 else slots
    rows = zip(pairwise(starts.tolist()), first_slots.tolist(), accepted.tolist(), strict=False)
    for (first, end), slot, count in rows:
        if slot == pad or end <= first:
            continue
        past = conv_state[slot, :, count - 1 : count - 1 + kept].to(x.dtype)
        inputs = torch.cat((past, x[first:end].T), 1)
        out[first:end] = torch.conv1d(inputs, weight[:, None], bias, groups=len(weight)).T
        conv_state[slot, :, : inputs.shape[1] - 1] = inputs[:, 1:].to(conv_state.dtype)
    return torch.nn.functional.silu(out) if activation else out
