"""The decoder: its weights and its forward over tokens.

The caller provides a `KVAccess`, which decides where K and V of a token are stored and which slots
it reads. The eager and the graph run differ only there. A draft model is a decoder that adds a
projection of the target's hidden state to its input.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from paritybit.reference.config import Kind, ModelConfig
from paritybit.reference.ops import Ops
from torch import Tensor

STATE_DECAY = (0.5, 0.875)
"""The share of the recurrent state that each further token keeps, first to last channel."""

Output = dict[str, Tensor]
"""The results of a forward by name: `logits` [rows, vocab], `hidden` [T, H], and others."""


class KVAccess(Protocol):
    """How a forward reaches the KV pool."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store key and value [T, G, D] and return attention [T, Q, D] of `query` [T, Q, D]."""
        ...


@dataclass(frozen=True)
class TokenInputs:
    """What a forward over T tokens reads, apart from KV.

    - input_ids, int64 [T]
    - payload, float32 [T, H]: added to the embeddings
    - positions, int64 [T]
    - live_tokens, int32 [1]: rows at or beyond it skip the MLP
    """

    input_ids: Tensor
    payload: Tensor
    positions: Tensor
    live_tokens: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer."""

    input_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class StatePaths:
    """How the states of T tokens follow from one another, in rows of `KVPools.states`.

    Token t continues the state of token t - 1 if `follows[t]`, bool [T], or else that in row
    `sources[t]`, or none if that is -1. Its own state is stored in row `targets[t]`. Both are int64
    [T]. At most `longest` tokens follow one another.
    """

    sources: Tensor
    targets: Tensor
    follows: Tensor
    longest: int


class Decoder:
    """A decoder of `config` with weights drawn from `seed`, in `dtype` on `device`.

    The same seed gives the same weights on every device. On a CPU, norms and matrices are rounded
    to `dtype` and held as float32.
    """

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int, scale: float, mean: float = 0.0) -> Tensor:
            drawn = torch.randn(shape, generator=generator).mul_(scale).to(dtype)
            return (drawn + mean if mean else drawn).to(device)

        # The ops of a CPU compute in float32, and would convert at each call.
        held_in = dtype if device.type == "cuda" else torch.float32

        def norm() -> Tensor:
            return draw(config.hidden, scale=0.1, mean=1.0).to(held_in)

        def factor(rows: int, columns: int, *, scale: float) -> Tensor:
            return draw(rows, columns, scale=scale).to(held_in)

        self.config = config
        self.dtype = dtype
        self.device = device
        self.embedding = draw(config.vocab, config.hidden, scale=1.0)
        self.layers = []
        for kind in config.layers:
            shape, width = config.shape(kind), config.intermediate
            queries, stored = config.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            weights = LayerWeights(
                input_norm=norm(),
                qkv=factor(queries + 2 * stored, config.hidden, scale=1.5 * config.hidden**-0.5),
                output=factor(config.hidden, queries, scale=queries**-0.5),
                mlp_norm=norm(),
                gate_up=factor(2 * width, config.hidden, scale=config.hidden**-0.5),
                down=factor(config.hidden, width, scale=width**-0.5),
            )
            self.layers.append(weights)
        self.final_norm = norm()
        self.head = factor(config.vocab, config.hidden, scale=2.0 * config.hidden**-0.5)
        self.hidden_norm = norm()
        self.decay = torch.linspace(*STATE_DECAY, config.hidden).to(device)
        self.fusion = factor(config.hidden, config.hidden, scale=config.hidden**-0.5)
        self.frequency = {
            kind: rotary_frequency(config, kind).to(device, torch.float32) for kind in Kind
        }

    def run_with(self, changes: Mapping[str, int]) -> "Decoder":
        """Return this model, or a copy with `changes` added to its configuration."""
        if not changes:
            return self
        added = {name: getattr(self.config, name) + change for name, change in changes.items()}
        other = copy(self)
        other.config = replace(self.config, **added)
        return other

    def advance_states(
        self, ops: Ops, states: Tensor, paths: StatePaths, input_ids: Tensor
    ) -> Tensor:
        """Update the states of `KVPools` with tokens. Returns the tokens' payload, float32 [T, H].

        `input_ids` is int64 [T]. All states are read before one is stored. If several tokens have
        one target, the last one stays.
        """
        found = ops.scan_states(
            states,
            paths.sources,
            paths.follows,
            paths.longest,
            self.embedding,
            input_ids,
            self.decay,
        )
        ops.store_rows(states, paths.targets, found)
        return found.float()

    def fuse(self, ops: Ops, hidden_states: Tensor) -> Tensor:
        """Return a draft model's payload, float32 [T, H]: its projection of the hidden states."""
        return ops.norm_linear(hidden_states, self.hidden_norm, self.fusion).float()

    def logits(self, ops: Ops, hidden: Tensor) -> Tensor:
        """Return logits [rows, vocab] from the last layer's output [rows, H]."""
        return ops.norm_linear(hidden, self.final_norm, self.head)

    def run_layers(self, ops: Ops, tokens: TokenInputs, access: KVAccess) -> Tensor:
        """Return the last layer's output [T, H]."""
        config = self.config
        hidden = ops.embed(self.embedding, tokens.input_ids, tokens.payload)
        rotary = {kind: ops.rotary(tokens.positions, self.frequency[kind]) for kind in Kind}
        for layer, (kind, weights) in enumerate(zip(config.layers, self.layers, strict=True)):
            groups = config.shape(kind).kv_heads
            turned, value = ops.project_heads(
                hidden, weights.input_norm, weights.qkv, rotary[kind], config.heads + groups
            )
            query, key = turned.split_with_sizes((config.heads, groups), dim=1)
            mixed = access.attend(layer, query, key, value)
            hidden = ops.linear_add(mixed.flatten(1), weights.output, hidden)
            gate_up = ops.norm_linear(hidden, weights.mlp_norm, weights.gate_up)
            hidden = ops.gated_linear_add(gate_up, weights.down, hidden, tokens.live_tokens)
        return hidden

    def forward(
        self, ops: Ops, tokens: TokenInputs, access: KVAccess, rows: Tensor | None = None
    ) -> Output:
        """Return `hidden` [T, H], and `logits` of all tokens or of those in `rows` (int64)."""
        hidden = self.run_layers(ops, tokens, access)
        logits = self.logits(ops, hidden if rows is None else hidden[rows])
        return {"logits": logits, "hidden": hidden}


def most_keys(config: ModelConfig, kind: Kind) -> int:
    """Return how many keys a token may list."""
    return config.max_context if kind is Kind.FULL else config.window


def rotary_frequency(config: ModelConfig, kind: Kind) -> Tensor:
    """Return the RoPE frequencies of one kind (radians per position), float64 [D/2]."""
    dim = config.shape(kind).head_dim
    return config.rope_theta(kind) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
