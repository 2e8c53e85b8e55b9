"""Our decoder as an engine's model: the engine's attention layers, our arithmetic around them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from reference.config import Kind
from reference.model import Heads, Model, TokenInputs
from reference.ops import Ops
from reference.state_pool import StatePaths, StatePool
from subjects.engines.sglang.loading import Engine
from subjects.states import decode_paths, extend_paths


class Decoder(torch.nn.Module):
    """The engine calls `forward` as it does any model's. `window` is that of SWA layers.

    `entering` is called with the number of a layer before it attends. Recurrent states are in
    `states`, where the engine's state indices say; without it there are none.
    """

    shared_experts_config = None

    def __init__(
        self, engine: Engine, model: Model, ops: Ops, window: int, states: StatePool | None
    ) -> None:
        super().__init__()
        self.states = states
        self.decoder = model
        self.ops = ops
        self.output = engine.part("srt.layers.logits_processor:LogitsProcessorOutput")
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
        self.config = SimpleNamespace(model_type="decoder")
        self.model = SimpleNamespace(layers=[], forward=self.forward)
        self.entering: Callable[[int], None] = lambda layer: None

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: Any,
        input_embeds: Tensor | None = None,
        **named: Any,
    ) -> Any:
        """Return hidden states of every token, and logits of as many.

        When it extends, logits are of each request's last token.
        """
        model, ops = self.decoder, self.ops
        tokens = TokenInputs(
            input_ids=input_ids,
            payload=self._payload(input_ids, positions, forward_batch),
            positions=positions,
            mrope_positions=forward_batch.mrope_positions,
            live_tokens=torch.full_like(input_ids[:1], input_ids.shape[0], dtype=torch.int32),
        )
        hidden = model.run_layers(ops, tokens, Access(self, forward_batch))
        last = hidden
        if forward_batch.forward_mode.is_extend():
            last = hidden[last_rows(forward_batch)]
        return self.output(next_token_logits=model.logits(ops, last), hidden_states=hidden)

    def _payload(self, input_ids: Tensor, positions: Tensor, batch: Any) -> Tensor:
        model, ops = self.decoder, self.ops
        index, mask = batch.mamba_track_indices, batch.mamba_track_mask
        nothing = torch.zeros_like(positions)
        if self.states is None or index is None:
            return model.payload(ops, model.embedding[nothing], nothing.bool(), nothing)
        paths = decode_paths(index)
        if batch.forward_mode.is_extend():
            paths, mask = self._extended(index, mask, positions, batch)
        states = model.advance_states(ops, self.states.recurrent, paths, input_ids)
        return model.payload(ops, states, mask, nothing)

    def _extended(
        self, index: Tensor, mask: Tensor, positions: Tensor, batch: Any
    ) -> tuple[StatePaths, Tensor]:
        """Return the paths of a prefill's tokens, and the mask of each."""
        lengths = batch.extend_seq_lens
        requests = torch.arange(index.shape[0], device=index.device).repeat_interleave(lengths)
        longest = max(batch.extend_seq_lens_cpu)
        return extend_paths(index, requests, positions, longest), mask[requests]


def last_rows(batch: Any) -> Tensor:
    """Return the rows of the last tokens of an engine batch's requests, int64 [B]."""
    found: Tensor = batch.extend_seq_lens.cumsum(0) - 1
    return found


class Access:
    """KV access of one forward, through the engine's attention layers."""

    def __init__(self, decoder: Decoder, batch: Any) -> None:
        self.decoder = decoder
        self.batch = batch

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Let the engine store key and value and attend."""
        return self.attended(layer, Heads(query, key, value), stores=True)

    def attended(self, layer: int, heads: Heads, *, stores: bool) -> Tensor:
        """Return what the engine's layer gives for some heads, whose K and V it may store."""
        sinks = self.decoder.decoder.layers[layer].sinks
        self.decoder.entering(layer)
        mixed = self.decoder.attention[layer](
            heads.query.flatten(1),
            heads.key.flatten(1) if stores else None,
            heads.value.flatten(1) if stores else None,
            self.batch,
            **({} if stores else {"save_kv_cache": False}),
            **({} if sinks is None else {"sinks": sinks}),
        )
        found: Tensor = mixed.view(heads.query.shape)
        return found
