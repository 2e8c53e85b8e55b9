"""vLLM's compiled mixture of experts for a CPU, in torch.

Each row is computed by products of its own, so its bits do not depend on the batch.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from paritybit.drive.vllm.lora import on_host

SLOPE = 1.702
LIMIT = 7.0
"""The constants of GPT-OSS's activation."""


def of_gpt_oss(values: Tensor) -> Tensor:
    """Return the activation of GPT-OSS, whose gates and values alternate."""
    gate = values[..., ::2].clamp(max=LIMIT)
    return (values[..., 1::2].clamp(-LIMIT, LIMIT) + 1) * gate * torch.sigmoid(SLOPE * gate)


def gated(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies the activation of the first half by the second half."""

    def multiplied(values: Tensor) -> Tensor:
        gate, up = values.chunk(2, dim=-1)
        return activation(gate) * up

    return multiplied


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": gated(silu),
    "gelu": gated(gelu),
    "gelu_tanh": gated(lambda gate: gelu(gate, approximate="tanh")),
    "swigluoai": of_gpt_oss,
}
"""The activations by vLLM's names, from [..., 2 * I] to [..., I]."""


def pack(weight: Tensor, packed: Tensor, isa: str) -> None:
    """Copy the weights of experts, because torch needs no other layout."""
    packed.copy_(weight)


def mix(
    out: Tensor,
    inputs: Tensor,
    w13: Tensor,
    w2: Tensor,
    w13_bias: Tensor | None,
    w2_bias: Tensor | None,
    topk_weights: Tensor,
    topk_ids: Tensor,
    skip_weighted: bool,
    act: str,
    isa: str,
) -> None:
    """Write the weighted sum of the chosen experts' results for each row to `out` [T, H].

    `inputs` has shape [T, H], `w13` [E, 2 * I, H], `w2` [E, H, I], and the last two tensors [T, K].
    With `skip_weighted`, the weights are in the inputs already.
    """
    experts = topk_ids.long().flatten()
    rows = inputs.repeat_interleave(topk_ids.shape[1], 0)
    made = products(
        ACTIVATIONS[act](products(rows.float(), w13, w13_bias, experts)), w2, w2_bias, experts
    )
    made = made.view(*topk_ids.shape, -1)
    if not skip_weighted:
        made = made * topk_weights.float().unsqueeze(-1)
    out.copy_(made.sum(1))


def products(rows: Tensor, weight: Tensor, bias: Tensor | None, experts: Tensor) -> Tensor:
    """Return each row [N, I] times the weight [E, O, I] of its expert, plus its bias: [N, O]."""
    chosen = [weight.float()[expert] for expert in on_host(experts)]
    made = torch.stack([torch.mv(one, row) for one, row in zip(chosen, rows, strict=True)])
    return made if bias is None else made + bias[experts].float()
