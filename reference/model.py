"""The decoder: weights and one forward over tokens, its KV access left to the caller.

Knows arithmetic only. Where a token's K and V go, and which slots it reads, is
decided by the `KVAccess` it is given: that is where the two worlds differ. A draft
model is a decoder that adds a projection of the target's hidden state to its input.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from paritybit.reference.batch import ENCODER_ROWS, MROPE_SECTIONS
from paritybit.reference.config import SPECULATION, Feature, Kind, ModelConfig
from paritybit.reference.ops import Ops
from paritybit.reference.pool import DRAWN_IN_PLACE
from paritybit.reference.state_pool import StatePaths
from torch import Tensor

STATE_DECAY = (0.5, 0.875)
"""How much of the recurrent state a further token leaves, from the first channel to the last."""

ADAPTERS = 4
"""LoRA adapters of a model; the first one adds nothing."""

Output = dict[str, Tensor]
"""The results of a forward by name: `logits` [rows, vocab], `hidden` [rows, H], and others."""


class KVAccess(Protocol):
    """How a forward reaches the KV pool."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store key and value [T, G, D] and return attention [T, Q, D] of `query` [T, Q, D]."""
        ...


@dataclass(frozen=True)
class TokenInputs:
    """What a forward over T tokens reads besides KV.

    input_ids int64 [T]; payload float32 [T, H] is added to the embeddings. RoPE uses
    positions int64 [T] on SWA layers, mrope_positions int64 [3, T] on full layers. Rows from
    `live_tokens` (int32 [1]) on skip the MLP; rows from `token_count` (int32 [1]) on, if it
    is given, have zero logits.
    """

    input_ids: Tensor
    payload: Tensor
    positions: Tensor
    mrope_positions: Tensor
    live_tokens: Tensor
    token_count: Tensor | None = None


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


@dataclass(frozen=True)
class Heads:
    """The inputs of one layer's attention: query [T, Q, D], key and value [T, G, D]."""

    query: Tensor
    key: Tensor
    value: Tensor


class Model:
    """A decoder of `config` with weights drawn from `seed`, in `dtype` on `device`.

    Many of them are drawn on the device itself, tensor by tensor in its order: on one kind of
    device the same seed gives the same.
    """

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int = 0
    ) -> None:
        many = weight_elements(config) >= DRAWN_IN_PLACE
        drawn_on = device if many else torch.device("cpu")
        drawn_in = dtype if many else torch.float32
        generator = torch.Generator(drawn_on).manual_seed(seed)

        def draw(*shape: int, scale: float, mean: float = 0.0) -> Tensor:
            drawn = torch.randn(shape, generator=generator, device=drawn_on, dtype=drawn_in)
            drawn = drawn.mul_(scale).to(dtype)
            # Where it was drawn: a GPU would load a kernel for it.
            return (drawn + mean if mean else drawn).to(device)

        def factor(rows: int, columns: int, *, scale: float) -> Tensor:
            drawn = draw(rows, columns, scale=scale)
            return drawn if device.type == "cuda" else column_major(drawn)

        self.config = config
        self.dtype = dtype
        self.device = device
        self.embedding = draw(config.vocab, config.hidden, scale=1.0)
        self.encoder_table = draw(ENCODER_ROWS, config.hidden, scale=0.5)
        self.layers: list[LayerWeights] = []
        width = config.intermediate
        for kind in config.layers:
            shape = config.shape(kind)
            query_width = config.heads * shape.head_dim
            self.layers.append(
                LayerWeights(
                    input_norm=draw(config.hidden, scale=0.1, mean=1.0),
                    qkv=factor(
                        query_width + 2 * shape.kv_heads * shape.head_dim,
                        config.hidden,
                        scale=1.5 * config.hidden**-0.5,
                    ),
                    output=factor(config.hidden, query_width, scale=query_width**-0.5),
                    mlp_norm=draw(config.hidden, scale=0.1, mean=1.0),
                    gate_up=factor(2 * width, config.hidden, scale=config.hidden**-0.5),
                    down=factor(config.hidden, width, scale=width**-0.5),
                    sinks=(
                        draw(config.heads, scale=1.0).float() if kind in config.sink_kinds else None
                    ),
                )
            )
        self.final_norm = draw(config.hidden, scale=0.1, mean=1.0)
        self.head = factor(config.vocab, config.hidden, scale=2.0 * config.hidden**-0.5)
        self.hidden_norm = draw(config.hidden, scale=0.1, mean=1.0)
        self.decay = torch.linspace(*STATE_DECAY, config.hidden).to(device)
        self.fusion = factor(config.hidden, config.hidden, scale=config.hidden**-0.5)
        self.frequency = {
            kind: rotary_frequency(config, kind).to(device, torch.float32) for kind in Kind
        }
        self.section = {
            Kind.SWA: torch.zeros(config.swa.head_dim // 2, dtype=torch.int64, device=device),
            Kind.FULL: rotary_section(config.full.head_dim // 2).to(device),
        }
        self.adapters = drawn_adapters(config, draw) if Feature.LORA in config.features else None

    def alike(self) -> "Model":
        """Return another model with the same tensors of weights."""
        other = copy(self)
        other.layers = [copy(weights) for weights in self.layers]
        other.frequency, other.section = dict(self.frequency), dict(self.section)
        return other

    def run_with(self, changes: Mapping[str, int]) -> "Model":
        """Return this model, or one whose forwards follow a configuration with `changes` added."""
        if not changes:
            return self
        added = {name: getattr(self.config, name) + change for name, change in changes.items()}
        other = self.alike()
        other.config = replace(self.config, **added)
        return other

    def advance_states(
        self, ops: Ops, states: Tensor, paths: StatePaths, input_ids: Tensor
    ) -> Tensor:
        """Take tokens int64 [T] into the states of a `StatePool`; return theirs, [T, H].

        All are read before one is stored. Where tokens have one target, the last one's stays.
        """
        found = ops.scan_states(
            states,
            paths.sources,
            paths.parents,
            paths.longest,
            self.embedding,
            input_ids,
            self.decay,
        )
        ops.store_rows(states, paths.targets, found)
        return found

    def payload(
        self,
        ops: Ops,
        states: Tensor,
        state_mask: Tensor,
        encoder_lens: Tensor,
        lora_ids: Tensor,
        input_ids: Tensor,
    ) -> Tensor:
        """Return the payload of tokens, float32 [T, H], of their states [T, H].

        All others have shape [T]. An adapter has a say only in a model that has some.
        """
        payload = ops.payload(states, state_mask, self.encoder_table, encoder_lens)
        if self.adapters is None:
            return payload
        return ops.adapt(payload, lora_ids, input_ids, *self.adapters)

    def fuse(self, ops: Ops, hidden_states: Tensor) -> Tensor:
        """Return the payload of a draft model, float32 [T, H]: its projection of hidden states."""
        return ops.norm_linear(hidden_states, self.hidden_norm, self.fusion).float()

    def embed(self, ops: Ops, input_ids: Tensor, payload: Tensor) -> Tensor:
        """Return the first layer's input [T, H]."""
        return ops.embed(self.embedding, input_ids, payload)

    def rotary(self, ops: Ops, positions: Tensor, mrope_positions: Tensor) -> dict[Kind, Tensor]:
        """Return cos and sin, float32 [2, T, D/2], for both kinds of layer."""
        by_kind = {Kind.SWA: positions[None], Kind.FULL: mrope_positions}
        return {
            kind: ops.rotary(by_kind[kind], self.section[kind], self.frequency[kind])
            for kind in Kind
        }

    def before_attention(
        self, ops: Ops, layer: int, hidden: Tensor, rotary: dict[Kind, Tensor]
    ) -> Heads:
        """Return a layer's Q, K and V: its input [T, H] after norm, projection and RoPE."""
        kind, weights = self.config.layers[layer], self.layers[layer]
        shape = self.config.shape(kind)
        heads, groups = self.config.heads, shape.kv_heads
        turned, value = ops.project_heads(
            hidden, weights.input_norm, weights.qkv, rotary[kind], heads + groups
        )
        query, key = turned.split_with_sizes((heads, groups), dim=1)
        return Heads(query, key, value)

    def after_attention(
        self, ops: Ops, layer: int, hidden: Tensor, mixed: Tensor, live_tokens: Tensor
    ) -> Tensor:
        """Return a layer's output [T, H] from its input and its attention [T, Q, D]."""
        weights = self.layers[layer]
        hidden = ops.linear_add(mixed.flatten(1), weights.output, hidden)
        gate_up = ops.norm_linear(hidden, weights.mlp_norm, weights.gate_up)
        return ops.gated_linear_add(
            gate_up, weights.down, hidden, self.config.activation, live_tokens
        )

    def logits(self, ops: Ops, hidden: Tensor) -> Tensor:
        """Return logits [rows, vocab] of the last layer's output [rows, H]."""
        return ops.norm_linear(hidden, self.final_norm, self.head)

    def run_layers(self, ops: Ops, tokens: TokenInputs, access: KVAccess) -> Tensor:
        """Return the last layer's output [T, H]."""
        hidden = self.embed(ops, tokens.input_ids, tokens.payload)
        rotary = self.rotary(ops, tokens.positions, tokens.mrope_positions)
        for layer in range(len(self.layers)):
            heads = self.before_attention(ops, layer, hidden, rotary)
            mixed = access.attend(layer, heads.query, heads.key, heads.value)
            hidden = self.after_attention(ops, layer, hidden, mixed, tokens.live_tokens)
        return hidden

    def forward(
        self, ops: Ops, tokens: TokenInputs, access: KVAccess, rows: Tensor | None = None
    ) -> Output:
        """Return `hidden` [T, H], and `logits` of the tokens or of `rows` (int64) of them alone."""
        hidden = self.run_layers(ops, tokens, access)
        logits = self.logits(ops, hidden if rows is None else hidden[rows])
        if tokens.token_count is not None:
            logits = ops.limit_rows(logits, tokens.token_count)
        return {"logits": logits, "hidden": hidden}


def drawn_adapters(config: ModelConfig, draw: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    """Return what `Ops.adapt` takes of the adapters of a model, the first of which adds nothing."""
    down = draw(ADAPTERS, config.vocab, 2, scale=1.0)
    down[0] = 0
    return down, draw(ADAPTERS, 2, config.hidden, scale=0.5)


def weight_elements(config: ModelConfig) -> int:
    """Return how many elements the matrices of a model's weights have: all but some rows."""
    hidden = config.hidden
    of_layers = 0
    for kind in config.layers:
        shape = config.shape(kind)
        projected = (2 * config.heads + 2 * shape.kv_heads) * shape.head_dim
        of_layers += hidden * (projected + 3 * config.intermediate)
    return 2 * config.vocab * hidden + hidden * hidden + of_layers


def column_major(matrix: Tensor) -> Tensor:
    """Return a matrix whose columns lie one after the other, as a CPU reads a factor fastest."""
    return matrix.T.contiguous().T


def most_keys(config: ModelConfig, kind: Kind, *, masked: bool) -> int:
    """Return how many keys a token may list: if `masked`, drafts come on top of the window."""
    if kind is Kind.FULL:
        return config.max_context
    return config.window + (SPECULATION.draft_tokens if masked else 0)


def rotary_frequency(config: ModelConfig, kind: Kind) -> Tensor:
    """Return the RoPE frequencies (radians per position), float64 [D/2], of one kind."""
    dim = config.shape(kind).head_dim
    return config.rope_theta(kind) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def rotary_section(pairs: int) -> Tensor:
    """Return the row of the mrope positions that rotates each pair, int64 [pairs]."""
    return torch.arange(pairs) * MROPE_SECTIONS // pairs
