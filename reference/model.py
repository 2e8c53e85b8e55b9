"""The decoder: weights and one forward over tokens, its KV access left to the caller.

Knows arithmetic only. Where a token's K and V go, and which slots it reads, is
decided by the `KVAccess` it is given: that is where the two worlds differ.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reference.batch import ENCODER_ROWS, MROPE_SECTIONS, TRACK_ROWS
from reference.config import Kind, ModelConfig
from reference.ops import Ops


class KVAccess(Protocol):
    """How a forward reaches the KV pool."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store key and value [T, G, D] and return attention [T, Q, D] of `query` [T, Q, D]."""
        ...


@dataclass(frozen=True)
class TokenInputs:
    """What a forward over T tokens reads besides KV; shapes as in `Ops.embed`.

    positions int64 [T] turn SWA layers, mrope_positions int64 [3, T] full layers.
    Rows from `live_tokens` (int32 [1]) on skip the MLP; rows from `token_count`
    (int32 [1]) on give zero logits.
    """

    input_ids: Tensor
    positions: Tensor
    mrope_positions: Tensor
    track_indices: Tensor
    track_mask: Tensor
    encoder_lens: Tensor
    live_tokens: Tensor
    token_count: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one layer. `sinks` is float32 [heads] where the kind has sinks."""

    input_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    sinks: Tensor | None


class Model:
    """A decoder of `config` with weights drawn from `seed`, in `dtype` on `device`."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int, scale: float) -> Tensor:
            return (torch.randn(shape, generator=generator) * scale).to(device, dtype)

        self.config = config
        self.dtype = dtype
        self.device = device
        self.embedding = draw(config.vocab, config.hidden, scale=1.0)
        self.track_table = draw(TRACK_ROWS, config.hidden, scale=0.5)
        self.encoder_table = draw(ENCODER_ROWS, config.hidden, scale=0.5)
        self.layers: list[LayerWeights] = []
        for kind in config.layers:
            shape = config.shape(kind)
            query_width = config.heads * shape.head_dim
            self.layers.append(
                LayerWeights(
                    input_norm=1 + draw(config.hidden, scale=0.1),
                    qkv=draw(
                        query_width + 2 * shape.kv_heads * shape.head_dim,
                        config.hidden,
                        scale=1.5 * config.hidden**-0.5,
                    ),
                    output=draw(config.hidden, query_width, scale=query_width**-0.5),
                    mlp_norm=1 + draw(config.hidden, scale=0.1),
                    gate_up=draw(2 * config.intermediate, config.hidden, scale=config.hidden**-0.5),
                    down=draw(config.hidden, config.intermediate, scale=config.intermediate**-0.5),
                    sinks=(
                        draw(config.heads, scale=1.0).float() if kind in config.sink_kinds else None
                    ),
                )
            )
        self.final_norm = 1 + draw(config.hidden, scale=0.1)
        self.head = draw(config.vocab, config.hidden, scale=2.0 * config.hidden**-0.5)
        self.frequency = {
            kind: rotary_frequency(config, kind).to(device, torch.float32) for kind in Kind
        }
        self.section = {
            Kind.SWA: torch.zeros(config.swa.head_dim // 2, dtype=torch.int64, device=device),
            Kind.FULL: rotary_section(config.full.head_dim // 2).to(device),
        }

    def forward(
        self, ops: Ops, tokens: TokenInputs, access: KVAccess, rows: Tensor | None = None
    ) -> Tensor:
        """Return logits [T, vocab] of the tokens, or of `rows` (int64) of them alone."""
        config = self.config
        hidden = ops.embed(
            self.embedding,
            tokens.input_ids,
            self.track_table,
            tokens.track_indices,
            tokens.track_mask,
            self.encoder_table,
            tokens.encoder_lens,
        )
        positions = {Kind.SWA: tokens.positions[None], Kind.FULL: tokens.mrope_positions}
        rotary = {
            kind: ops.rotary(positions[kind], self.section[kind], self.frequency[kind])
            for kind in Kind
        }
        for index, (kind, layer) in enumerate(zip(config.layers, self.layers, strict=True)):
            shape = config.shape(kind)
            qkv = ops.norm_linear(hidden, layer.input_norm, layer.qkv)
            heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
            turned = ops.rope(heads[:, : -shape.kv_heads], rotary[kind])
            mixed = access.attend(
                index,
                turned[:, : config.heads],
                turned[:, config.heads :],
                heads[:, -shape.kv_heads :],
            )
            hidden = ops.linear_add(mixed.flatten(1), layer.output, hidden)
            gate_up = ops.norm_linear(hidden, layer.mlp_norm, layer.gate_up)
            hidden = ops.gated_linear_add(
                gate_up, layer.down, hidden, config.activation, tokens.live_tokens
            )
        if rows is not None:
            hidden = hidden[rows]
        logits = ops.norm_linear(hidden, self.final_norm, self.head)
        return ops.limit_rows(logits, tokens.token_count)


def rotary_frequency(config: ModelConfig, kind: Kind) -> Tensor:
    """Return the RoPE frequencies (radians per position), float64 [D/2], of one kind."""
    dim = config.shape(kind).head_dim
    return config.rope_theta(kind) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def rotary_section(pairs: int) -> Tensor:
    """Return which of the mrope position rows turns each rotary pair, int64 [pairs]."""
    return torch.arange(pairs) * MROPE_SECTIONS // pairs
