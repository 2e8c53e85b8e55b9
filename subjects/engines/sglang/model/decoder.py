"""Our decoder as an engine's model: the engine's attention layers, our arithmetic around them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from paritybit.reference.config import Kind
from paritybit.reference.model import Heads, Model
from paritybit.reference.ops import Ops
from paritybit.reference.state_pool import StatePool
from paritybit.subjects.engines.shared.inputs import no_payload, token_inputs
from paritybit.subjects.engines.shared.loading import Engine
from paritybit.subjects.states import decode_paths, extend_paths
from torch import Tensor


class Body(torch.nn.Module):
    """The layers alone, from tokens to hidden states. `window` is that of SWA layers.

    `entering` is called with the number of a layer before it attends.
    """

    layers: tuple[torch.nn.Module, ...] = ()

    def __init__(self, engine: Engine, model: Model, ops: Ops, window: int) -> None:
        super().__init__()
        self.weights = model
        self.ops = ops
        layer = engine.part("srt.layers.radix_attention:RadixAttention")
        config = model.config
        self.attention = [
            layer(
                num_heads=config.heads,
                head_dim=config.shape(kind).head_dim,
                scaling=config.shape(kind).head_dim ** -0.5,
                num_kv_heads=config.shape(kind).kv_heads,
                layer_id=index,
                sliding_window_size=window if kind is Kind.SWA else -1,
            )
            for index, kind in enumerate(config.layers)
        ]
        self.entering: Callable[[int], None] = lambda layer: None

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: Any,
        input_embeds: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states of every token. `input_embeds` are added to the embeddings."""
        mrope = forward_batch.mrope_positions
        tokens = token_inputs(self.weights, self.ops, input_ids, positions, mrope, input_embeds)
        return self.weights.run_layers(self.ops, tokens, Access(self, forward_batch))


class Decoder(torch.nn.Module):
    """The engine calls `forward` as it does any model's, and may replace that of its `model`.

    Recurrent states are in `states`, where the engine's state indices say; without it there
    are none. They are read and stored outside of the body, as an engine's own are: what they add
    reaches a captured body by static embeddings, which the last forward had if `has_embeddings`.
    """

    shared_experts_config = None
    has_embeddings = False

    def __init__(
        self, engine: Engine, model: Model, ops: Ops, window: int, states: StatePool | None
    ) -> None:
        super().__init__()
        self.states = states
        self.weights = model
        self.ops = ops
        self.output = engine.part("srt.layers.logits_processor:LogitsProcessorOutput")
        self.config = SimpleNamespace(model_type="decoder")
        self.model = Body(engine, model, ops, window)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: Any,
        input_embeds: Tensor | None = None,
        **named: Any,
    ) -> Any:
        """Return hidden states of every token, and logits of as many.

        When it extends by known tokens, logits are of each request's last one.
        """
        payload = self._payload(input_ids, positions, forward_batch)
        self.has_embeddings = forward_batch.input_embeds is not None
        if self.has_embeddings:
            payload = forward_batch.input_embeds.copy_(payload)
        hidden = self.model(input_ids, positions, forward_batch, payload)
        last = hidden
        if extends(forward_batch):
            last = hidden[last_rows(forward_batch)]
        logits = self.weights.logits(self.ops, last)
        return self.output(next_token_logits=logits, hidden_states=hidden)

    def _payload(self, input_ids: Tensor, positions: Tensor, batch: Any) -> Tensor:
        model, ops = self.weights, self.ops
        index, mask = batch.mamba_track_indices, batch.mamba_track_mask
        if self.states is None or index is None:
            return no_payload(model, ops, positions)
        if extends(batch):
            return self._extended(index, mask, input_ids, positions, batch)
        states = model.advance_states(ops, self.states.recurrent, decode_paths(index), input_ids)
        return model.payload(ops, states, mask, torch.zeros_like(positions))

    def _extended(
        self, index: Tensor, mask: Tensor, input_ids: Tensor, positions: Tensor, batch: Any
    ) -> Tensor:
        """Return the payload of a prefill's tokens; that of padded ones is zero."""
        assert self.states is not None
        model, lengths = self.weights, batch.extend_seq_lens
        requests = torch.arange(index.shape[0], device=index.device).repeat_interleave(lengths)
        live, longest = len(requests), int(max(batch.extend_seq_lens_cpu))
        paths = extend_paths(index, requests, positions[:live], longest)
        states = model.advance_states(self.ops, self.states.recurrent, paths, input_ids[:live])
        found = no_payload(model, self.ops, positions)
        found[:live] = model.payload(self.ops, states, mask[requests], torch.zeros_like(requests))
        return found


def extends(batch: Any) -> bool:
    """Whether a batch of the engine computes tokens that are known; drafts are not."""
    mode = batch.forward_mode
    return bool(mode.is_extend() and not mode.is_target_verify())


def last_rows(batch: Any) -> Tensor:
    """Return the rows of the last tokens of an engine batch's requests, int64 [B]."""
    found: Tensor = batch.extend_seq_lens.cumsum(0) - 1
    return found


class Access:
    """KV access of one forward, through the engine's attention layers."""

    def __init__(self, body: Body, batch: Any) -> None:
        self.body = body
        self.batch = batch

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Let the engine store key and value and attend."""
        return self.attended(layer, Heads(query, key, value), stores=True)

    def attended(self, layer: int, heads: Heads, *, stores: bool) -> Tensor:
        """Return what the engine's layer gives for some heads, whose K and V it may store."""
        sinks = self.body.weights.layers[layer].sinks
        self.body.entering(layer)
        mixed = self.body.attention[layer](
            heads.query.flatten(1),
            heads.key.flatten(1) if stores else None,
            heads.value.flatten(1) if stores else None,
            self.batch,
            **({} if stores else {"save_kv_cache": False}),
            **({} if sinks is None else {"sinks": sinks}),
        )
        found: Tensor = mixed.view(heads.query.shape)
        return found
