"""What sglang's kernels of recurrent layers get and return."""

from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins import recurrences

CHUNK = 64
"""The tokens of a chunk of a gated delta net. Kernels return the state before each."""

scan_step, delta_packed = recurrences.scan_step, recurrences.delta_packed


def scanned_prompts(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Any = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    cu_seqlens: Any = None,
    dt_softplus: bool = False,
    out: Any = None,
    state_dtype: torch.dtype | None = None,
    track_seq_idx: Tensor | None = None,
    track_end_locs: Tensor | None = None,
    return_track_states: bool = False,
    **_: Any,
) -> Any:
    """Scan prompts of Mamba2, [1, T, heads, n].

    Returns the state before each chunk of the batch, those after each prompt, and tracked ones.
    """
    assert z is None, "outputs are gated later"
    bounds, given = cu_seqlens.tolist(), (x[0], dt[0], A, B[0], C[0])
    more = {"skip": D, "bias": dt_bias, "soft": dt_softplus, "out": out[0]}
    found = recurrences.scans(*given, bounds, initial_states, **more)
    last = torch.stack([states[-1] for states in found]).to(state_dtype)
    before = [found[0][0]]
    for at in range(chunk_size, bounds[-1], chunk_size):
        row = next(row for row, end in enumerate(bounds[1:]) if end >= at)
        before.append(found[row][at - bounds[row]])
    tracked = None
    if track_seq_idx is not None and track_end_locs is not None and len(track_seq_idx):
        rows = zip(track_seq_idx.tolist(), track_end_locs.tolist(), strict=True)
        tracked = torch.stack([found[row][end - bounds[row]] for row, end in rows])[None]
    chunks = torch.stack(before).to(state_dtype)[None]
    return (chunks, last, tracked) if return_track_states else last


def gated_norm(
    x: Tensor,
    g: Tensor,
    weight: Tensor,
    bias: Any = None,
    activation: str = "swish",
    residual: Any = None,
    eps: float = 1e-6,
    **_: Any,
) -> Tensor:
    """Normalise the outputs of a gated delta net, and gate them with `g`."""
    assert bias is None and residual is None and activation in {"swish", "silu"}
    scale = (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()
    return (x * scale * weight * torch.nn.functional.silu(g.float())).to(x.dtype)


def delta_prompts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    inplace_update: bool = True,
    **_: Any,
) -> tuple[Tensor, None, Tensor]:
    """Compute prompts of a gated delta net, [1, T, heads, n], and update their states.

    Returns outputs and the state before each chunk of each prompt.
    """
    slots, bounds = initial_state_indices.long(), cu_seqlens.tolist()
    live = slots >= 0
    held = initial_state[slots.clamp(min=0)].float() * live[:, None, None, None]
    given = recurrences.prepared(q[0], k[0], v[0], scale, use_qk_l2norm_in_kernel)
    out = torch.zeros_like(v[0])
    found = recurrences.deltas(*given, g[0], beta[0], bounds, held, out)
    if inplace_update:
        last = torch.stack([states[-1] for states in found])
        initial_state[slots[live]] = last[live].to(initial_state.dtype)
    return out[None], None, torch.cat([states[:-1:CHUNK] for states in found])[None]
