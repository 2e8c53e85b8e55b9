"""The dense oracle: a float64 model without cache and pages. Its masks follow the definition.

It shares only configuration and weights with the eager path, so it also detects a bug that both
runs have, such as a window that is off by one. It stores positions, not slots.
"""

import math

import torch
from paritybit.reference.config import Kind
from paritybit.reference.model import Decoder
from torch import Tensor


def visible(kind: Kind, window: int, length: int) -> Tensor:
    """Return the attention mask, bool [length, length]: whether query i sees key j."""
    query = torch.arange(length)[:, None]
    key = torch.arange(length)[None, :]
    causal = key <= query
    return causal if kind is Kind.FULL else causal & (query - key < window)


def dense_logits(model: Decoder, tokens: Tensor) -> Tensor:
    """Return float64 logits [L, vocab] of a whole request of L tokens (int64 [L], host)."""
    return _decode(model, wide(model.embedding)[tokens] + recurrent_states(model, tokens))


def recurrent_states(model: Decoder, tokens: Tensor) -> Tensor:
    """Return a request's recurrent state after each of its L tokens, float64 [L, H].

    Computed as a sum: half of each token's embedding, times the decay for each later token.
    """
    place = torch.arange(len(tokens))
    since = (place[:, None] - place)[:, :, None]
    left = torch.where(since >= 0, wide(model.decay) ** since.clamp(min=0), 0.0)
    return (left * wide(model.embedding)[tokens] / 2).sum(1)


def dense_draft_logits(draft: Decoder, tokens: Tensor, hidden_states: Tensor) -> Tensor:
    """Return float64 logits [L, vocab] of a draft model over L tokens (int64 [L], host).

    Row i of `hidden_states` [L, H] is the target's hidden state for the token before token i.
    """
    fused = _norm(wide(hidden_states), wide(draft.hidden_norm)) @ wide(draft.fusion).T
    return _decode(draft, wide(draft.embedding)[tokens] + fused)


def wide(weight: Tensor) -> Tensor:
    """Return a tensor in float64 on the host."""
    return weight.detach().cpu().double()


def _decode(model: Decoder, inputs: Tensor) -> Tensor:
    """Return logits from the inputs of the first layer, [L, H]."""
    config = model.config
    length, hidden = len(inputs), inputs
    for place, (kind, layer) in enumerate(zip(config.layers, model.layers, strict=True)):
        shape = config.shape(kind)
        query, key, value = heads(model, place, hidden)
        group = config.heads // shape.kv_heads
        key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
        score = query @ key.transpose(1, 2) / math.sqrt(shape.head_dim)
        score = score.masked_fill(~visible(kind, config.window, length), -math.inf)
        mixed = (torch.softmax(score, -1) @ value).transpose(0, 1).flatten(1)
        hidden = hidden + mixed @ wide(layer.output).T
        gate, up = (_norm(hidden, wide(layer.mlp_norm)) @ wide(layer.gate_up).T).chunk(2, -1)
        gated = gate * gate.sigmoid() * up
        hidden = hidden + gated @ wide(layer.down).T
    return _norm(hidden, wide(model.final_norm)) @ wide(model.head).T


def heads(model: Decoder, place: int, hidden: Tensor) -> tuple[Tensor, ...]:
    """Return query, key and value, float64 [heads, L, D], of layer `place` from its input.

    Keys and values are as a cache stores them: rotated.
    """
    config, layer, length = model.config, model.layers[place], len(hidden)
    kind = config.layers[place]
    shape = config.shape(kind)
    qkv = _norm(hidden, wide(layer.input_norm)) @ wide(layer.qkv).T
    split = qkv.view(length, -1, shape.head_dim).transpose(0, 1)
    query, key, value = split.split([config.heads, shape.kv_heads, shape.kv_heads])
    angle = _angles(model, kind, length)
    query, key = _turn(query, angle), _turn(key, angle)
    return query, key, value


def _norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return hidden / (hidden.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def _angles(model: Decoder, kind: Kind, length: int) -> Tensor:
    """Return the rotary angle of each position and pair of elements, [L, D/2]."""
    dim = model.config.shape(kind).head_dim
    # float64, because a quotient of integers would be float32.
    place = torch.arange(dim // 2, dtype=torch.float64)
    frequency = torch.exp(-2 * place / dim * math.log(model.config.rope_theta(kind)))
    return torch.arange(length, dtype=torch.float64)[:, None] * frequency


def _turn(heads: Tensor, angle: Tensor) -> Tensor:
    """Rotate heads, first half against second, as complex numbers."""
    first, second = heads.chunk(2, -1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)
