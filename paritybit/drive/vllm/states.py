"""What vLLM's kernels of recurrent layers get and return. Padding has the state 0.

A row with drafts has a slot for the state after each of its tokens. It begins with the state after
the last token that was accepted.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins import recurrences

PAD = 0


def steps_of(
    slots: Tensor, bounds: Tensor, accepted: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the tokens of rows with drafts in order: their places, and the slots of their states.

    Row r has tokens `bounds[r]` to `bounds[r + 1]` - 1. These are the slots before and after one.
    """
    rows, starts, counts = torch.arange(len(bounds) - 1), bounds[:-1].long(), bounds.diff()
    before = slots[rows, accepted[: len(rows)].long().clamp(min=1) - 1]
    for step in range(int(counts.max())):
        live, after = counts > step, slots[: len(rows), step]
        yield (starts + step)[live], before[live], after[live]
        before = after


def scan_step(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    num_accepted_tokens: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    is_blackwell: bool = False,
    *,
    state_batch_indices: Tensor,
    dst_state_batch_indices: Tensor | None = None,
    out: Tensor,
    dt_softplus: bool = False,
) -> None:
    """Take one step of Mamba2 for each token of a row: see `recurrences.scan_step`."""
    step = partial(
        recurrences.scan_step, state, A=A, D=D, dt_bias=dt_bias, dt_softplus=dt_softplus, pad=PAD
    )
    if num_accepted_tokens is None or cu_seqlens is None:
        step(x, dt, B=B, C=C, out=out, state_batch_indices=state_batch_indices)
        return
    for places, before, after in steps_of(state_batch_indices, cu_seqlens, num_accepted_tokens):
        made, (x_now, dt_now, b, c) = out[places], (one[places] for one in (x, dt, B, C))
        more: Any = {"state_batch_indices": before, "dst_state_batch_indices": after}
        step(x_now, dt_now, B=b, C=c, out=made, **more)
        out[places] = made


def scanned_prompts(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    cu_seqlens: Tensor,
    cu_chunk_seqlens: Tensor,
    last_chunk_indices: Tensor,
    seq_idx: Tensor,
    out: Tensor,
    D: Tensor | None = None,
    z: Any = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    return_intermediate_states: bool = False,
    state_dtype: torch.dtype | None = None,
    final_states_out: Tensor | None = None,
    final_state_indices: Tensor | None = None,
    **_: Any,
) -> Tensor | None:
    """Scan prompts of Mamba2, [T, heads, n], whose chunks have bounds of their own.

    Returns the states after prompts, or after all chunks, or writes the former to their slots.
    """
    assert z is None, "outputs are gated later"
    bounds, given = cu_seqlens.tolist(), (x, dt, A, B, C)
    more: dict[str, Any] = {"skip": D, "bias": dt_bias, "soft": dt_softplus, "out": out}
    found = recurrences.scans(*given, bounds, initial_states, **more)
    if return_intermediate_states:
        ends = zip(cu_chunk_seqlens.tolist()[1:], seq_idx.tolist(), strict=True)
        return torch.stack([found[row][end - bounds[row]] for end, row in ends]).to(state_dtype)
    last = torch.stack([states[-1] for states in found]).to(state_dtype)
    if final_states_out is None or final_state_indices is None:
        return last
    final_states_out[final_state_indices.long()] = last
    return None


delta_packed = partial(recurrences.delta_packed, pad=PAD)


def delta_rows(
    A_log: Tensor,
    a: Tensor,
    b: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor,
    ssm_state_indices: Tensor,
    cu_seqlens: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    num_accepted_tokens: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """Take one step of a gated delta net for each token of a row, [1, T, heads, n].

    Returns the outputs. Without drafts, a row has one token.
    """
    out, slots = torch.zeros_like(v), ssm_state_indices
    if num_accepted_tokens is None:
        slots = ssm_state_indices.flatten()[:, None]
        num_accepted_tokens = torch.ones_like(slots[:, 0])
    q, k, v = recurrences.prepared(q[0], k[0], v[0], scale, use_qk_l2norm_in_kernel)
    g, beta = recurrences.gates(A_log, a, dt_bias), b.sigmoid()
    for places, before, after in steps_of(slots, cu_seqlens, num_accepted_tokens):
        q_now, k_now, v_now, g_now, beta_now = (one[places] for one in (q, k, v, g, beta))
        given = initial_state, before, q_now, k_now, v_now, g_now, beta_now
        made = recurrences.delta_step(*given, PAD, after)
        out[0, places] = made.to(out.dtype)
    return out


def delta_prepared(
    conv_output: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    num_k_heads: int,
    head_k_dim: int,
    head_v_dim: int,
    apply_l2norm: bool = True,
    output_g_exp: bool = False,
) -> tuple[Tensor, ...]:
    """Return the queries, keys and values, [T, heads, n], and the gates of prompts, [T, heads]."""
    size = num_k_heads * head_k_dim
    q, k, v = conv_output.split((size, size, conv_output.shape[1] - 2 * size), 1)
    q, k = (one.unflatten(1, (num_k_heads, head_k_dim)) for one in (q, k))
    q, k = (recurrences.normal(q), recurrences.normal(k)) if apply_l2norm else (q, k)
    g = recurrences.gates(A_log, a, dt_bias)
    v = v.unflatten(1, (-1, head_v_dim))
    return q, k, v, g.exp() if output_g_exp else g, b.float().sigmoid()


def delta_prompts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Compute prompts of a gated delta net, [1, T, heads, n]. Returns outputs and last states."""
    given = recurrences.prepared(q[0], k[0], v[0], scale, use_qk_l2norm_in_kernel)
    out, bounds = torch.zeros_like(v[0]), cu_seqlens.tolist()
    found = recurrences.deltas(*given, g[0], beta[0], bounds, initial_state, out)
    return out[None], torch.stack([states[-1] for states in found])
