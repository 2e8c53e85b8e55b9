"""States of Mamba2 and of gated delta nets in torch, over those that the engines' kernels get.

A token takes one step of the recurrence. Which states are read and written is for the caller.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus


def of_heads(given: Tensor, heads: int) -> Tensor:
    """Repeat groups, [..., groups, n], for all of their heads, [..., heads, n]."""
    return given.float().repeat_interleave(heads // given.shape[-2], -2)


# Mamba2.


def scanned(
    state: Tensor, x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Scan tokens from a state, [heads, n, m]. Returns outputs, [T, heads, n], and T + 1 states.

    `x` has shape [T, heads, n], `dt` [T, heads], `decay` [heads], and `b` and `c` [T, groups, m].
    """
    heads, states = x.shape[1], [state.float()]
    added = (dt[..., None] * x)[..., None] * of_heads(b, heads)[:, :, None]
    for kept, more in zip((dt * decay).exp()[..., None, None], added, strict=True):
        states.append(states[-1] * kept + more)
    held = torch.stack(states)
    return (held[1:] * of_heads(c, heads)[:, :, None]).sum(-1), held


def time_steps(dt: Tensor, bias: Tensor | None, soft: bool) -> Tensor:
    """Return the steps of a scan in time."""
    dt = dt.float() + (0 if bias is None else bias.float())
    return softplus(dt) if soft else dt


def with_skips(y: Tensor, x: Tensor, skip: Tensor | None) -> Tensor:
    """Add what bypasses the state to outputs, [..., heads, n]."""
    return y if skip is None else y + x * (skip[:, None] if skip.dim() == 1 else skip).float()


def scans(
    x: Tensor,
    dt: Tensor,
    decay: Tensor,
    b: Tensor,
    c: Tensor,
    bounds: Sequence[int],
    initial: Tensor | None,
    *,
    skip: Tensor | None,
    bias: Tensor | None,
    soft: bool,
    out: Tensor,
) -> list[Tensor]:
    """Scan prompts, whose tokens have these bounds, and fill `out`. Returns the states of each."""
    steps, found = time_steps(dt, bias, soft), []
    fresh = x.new_zeros((x.shape[1], x.shape[2], b.shape[-1]), dtype=torch.float32)
    for row, (first, end) in enumerate(pairwise(bounds)):
        mine, start = slice(first, end), fresh if initial is None else initial[row]
        y, states = scanned(start, x[mine], steps[mine], decay, b[mine], c[mine])
        out[mine] = with_skips(y, x[mine], skip).to(out.dtype)
        found.append(states)
    return found


def scan_step(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Any = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Any = None,
    dst_state_batch_indices: Any = None,
    out: Any = None,
    pad: int = -1,
) -> None:
    """Take one step of Mamba2 per row, [R, heads, n], and update the states of rows in place."""
    assert z is None, "outputs are gated later"
    source = state_batch_indices.flatten()
    target = source if dst_state_batch_indices is None else dst_state_batch_indices.flatten()
    live = source != pad
    held, steps = state[source.long().clamp(min=0)].float(), time_steps(dt, dt_bias, dt_softplus)
    heads = x.shape[1]
    held = held * (steps[..., None] * A).exp()
    held = held + (steps * x)[..., None] * of_heads(B, heads)[:, :, None]
    state[target[live].long()] = held[live].to(state.dtype)
    y = with_skips((held * of_heads(C, heads)[:, :, None]).sum(-1), x, D)
    out.copy_(torch.where(live[:, None, None], y.to(out.dtype), 0))


# Gated delta nets.


def normal(given: Tensor) -> Tensor:
    """Scale vectors to length 1."""
    return given / (given.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def gates(decay: Tensor, a: Tensor, bias: Tensor) -> Tensor:
    """Return the logarithms of what a state keeps in each step."""
    return -decay.float().exp() * softplus(a.float() + bias.float())


def delta(state: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Return states, [..., heads, v, k], after a step that moves what they hold at `k` to `v`."""
    state = state * g.exp()[..., None, None]
    change = (v - (state * k[..., None, :]).sum(-1)) * beta[..., None]
    return state + change[..., None] * k[..., None, :]


def prepared(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, norm: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of all heads as floats, with scaled queries."""
    heads, (q, k) = v.shape[-2], (one.float() for one in (q, k))
    q, k = (normal(q), normal(k)) if norm else (q, k)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    return of_heads(q * scale, heads), of_heads(k, heads), v.float()


def deltas(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    bounds: Sequence[int],
    initial: Tensor,
    out: Tensor,
) -> list[Tensor]:
    """Compute prompts, [T, heads, n], from their initial states, and fill `out`.

    Returns the states of each. A prompt of T tokens has T + 1.
    """
    found = []
    for (first, end), start in zip(pairwise(bounds), initial, strict=True):
        states = [start.float()]
        for at in range(first, end):
            states.append(delta(states[-1], k[at], v[at], g[at].float(), beta[at].float()))
        held = torch.stack(states)
        out[first:end] = (held[1:] * q[first:end, :, None]).sum(-1).to(out.dtype)
        found.append(held)
    return found


def delta_step(
    states: Tensor,
    slots: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pad: int = -1,
    targets: Tensor | None = None,
) -> Tensor:
    """Take one step per row, [R, heads, n], from the states in slots, and return outputs.

    The new states get into the slots, or into `targets`.
    """
    live = slots != pad
    held = delta(states[slots.long().clamp(min=0)].float(), k, v, g, beta.float())
    written = slots if targets is None else targets
    states[written[live].long()] = held[live].to(states.dtype)
    return torch.where(live[:, None, None], (held * q[:, :, None]).sum(-1), 0)


def delta_packed(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    pad: int = -1,
) -> None:
    """Take one step of a gated delta net per row, and fill `out`, [R, 1, heads, v]."""
    heads, values, keys = initial_state.shape[1:]
    size = (mixed_qkv.shape[1] - heads * values) // 2
    q, k, v = mixed_qkv.split((size, size, heads * values), 1)
    q, k, v = (one.unflatten(1, (-1, n)) for one, n in ((q, keys), (k, keys), (v, values)))
    q, k, v = prepared(q, k, v, scale, use_qk_l2norm_in_kernel)
    made = delta_step(
        initial_state, ssm_state_indices, q, k, v, gates(A_log, a, dt_bias), b.sigmoid(), pad
    )
    out.copy_(made[:, None])
