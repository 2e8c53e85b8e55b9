"""Replaces compiled layers and kernels by the engine's own torch code, or by a torch function."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from paritybit.drive.stand_ins import attention
from paritybit.drive.stand_ins.modules import found
from paritybit.engines.graphs import whole

ATTENTION: Mapping[str, Callable[..., None]] = {
    "decode_attention.decode_attention_fwd": attention.decode_attention,
    "extend_attention.extend_attention_fwd": attention.extend_attention,
    "extend_attention.extend_attention_fwd_unified": attention.unified_attention,
}
"""Maps each kernel of the Triton backend to its stand-in."""

KERNELS = ("sglang.srt.layers.attention.triton_ops", "sglang.kernels.ops.attention")
"""The packages of these kernels, by release."""

OF_NO_ACCOUNT = frozenset(
    {
        *("attn_logits", "attn_lse", "num_kv_splits", "max_kv_splits", "max_len_extend"),
        *("extend_seq_lens_cpu", "page_size", "has_mla", "use_pdl", "enable_lean", "lean_Mp"),
        *("lean_Lp", "lean_Op", "lean_locks", "uneven_batch", "identity_kv_indices"),
    }
)
"""Arguments that affect how a kernel computes, and not its result."""


def stand_in_for_layers() -> None:
    """Use the engine's own torch implementations of layers."""
    layers: Any = importlib.import_module("sglang.srt.layers.utils.multi_platform")
    layers.MultiPlatformOp.dispatch_forward = lambda layer: layer.forward_native


def stand_in_for_attention() -> None:
    """Compute attention with torch, over the lists that the kernels get."""
    for place, arithmetic in ATTENTION.items():
        file, name = place.split(".")
        for package in KERNELS:
            module = found(f"{package}.{file}")
            if hasattr(module, name):
                setattr(module, name, whole(adapted(getattr(module, name), arithmetic)))


CONVOLUTIONS = "sglang.srt.layers.attention.mamba.causal_conv1d"
"""The module of short convolutions over states."""


def stand_in_for_convolutions() -> str | None:
    """Compute short convolutions with torch, over the states that the kernels get."""
    module = found(CONVOLUTIONS)
    if module is None:
        return ""
    module.causal_conv1d_fn = whole(convolved, returns=True)
    module.causal_conv1d_update = whole(convolved_once, returns=True)
    return None


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

    The inputs of row r begin at `query_start_loc[r]`. Its state, [channels, width - 1], has its
    last inputs. Without `has_initial_state`, no row continues from its state.
    """
    out, kept = torch.zeros_like(x), weight.shape[1] - 1
    bounds, slots = query_start_loc.tolist(), cache_indices.tolist()
    old = [False] * len(slots) if has_initial_state is None else has_initial_state.tolist()
    for (first, end), slot, goes_on in zip(pairwise(bounds), slots, old, strict=True):
        if slot == pad_slot_id or end <= first:
            continue
        state = conv_states[slot] if goes_on else torch.zeros_like(conv_states[slot])
        inputs = torch.cat((state[:, -kept:].to(x.dtype), x[:, first:end]), 1)
        out[:, first:end] = torch.conv1d(inputs, weight[:, None], bias, groups=len(weight))
        conv_states[slot] = inputs[:, -kept:].to(conv_states.dtype)
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
) -> Tensor:
    """Convolve one input per row, [R, channels], with `weight`, and update the states of rows."""
    assert cache_seqlens is None, "states are no rings here"
    live = conv_state_indices != pad_slot_id
    slots = conv_state_indices.long().clamp(min=0)
    inputs = torch.cat((conv_state[slots].to(x.dtype), x[:, :, None]), 2)
    conv_state[slots[live]] = inputs[live][:, :, 1:].to(conv_state.dtype)
    out = (inputs * weight).sum(2) + (0 if bias is None else bias)
    return torch.nn.functional.silu(out) if activation else out


def stand_in_for_experts() -> str | None:
    """Make a graph keep each call of the engine's own experts in torch as one step."""
    experts = found("sglang.srt.layers.moe.fused_moe_native")
    if not hasattr(experts, "moe_forward_native"):
        return ""
    experts.moe_forward_native = whole(experts.moe_forward_native, returns=True)
    return None


def stand_in_for_softcap() -> str | None:
    """Bound the logits with torch, if the release has a kernel for this."""
    logits = found("sglang.srt.layers.logits_processor")
    if not hasattr(logits, "fused_softcap"):
        return ""
    logits.fused_softcap = softcap
    return None


def softcap(logits: Tensor, cap: float) -> Tensor:
    """Bound logits smoothly, in place, and return them."""
    return logits.copy_((logits / cap).tanh() * cap)


def adapted(kernel: Callable[..., None], arithmetic: Callable[..., None]) -> Callable[..., None]:
    """Return a function with the signature of a kernel that computes with `arithmetic`.

    It raises NotImplementedError for an argument that `arithmetic` lacks, unless it is the default.
    """
    signature = inspect.signature(kernel)
    known = set(inspect.signature(arithmetic).parameters)
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if name not in known | OF_NO_ACCOUNT
    }

    def called(*arguments: Any, **named: Any) -> None:
        given = signature.bind(*arguments, **named).arguments
        unknown = [name for name, value in defaults.items() if given.get(name, value) is not value]
        if unknown:
            raise NotImplementedError(f"attention with {', '.join(unknown)} has no stand-in")
        arithmetic(**{name: value for name, value in given.items() if name in known})

    return called
