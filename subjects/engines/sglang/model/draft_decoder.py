"""Our draft decoder as an engine's draft model, with KV of its own or over the target's."""

from collections.abc import Mapping
from typing import Any

import torch
from paritybit.reference.eager import draft_inputs
from paritybit.reference.model import Heads, Model
from paritybit.reference.ops import Ops
from paritybit.subjects.engines.sglang.model.decoder import Access, Decoder, last_rows
from paritybit.subjects.engines.shared.loading import Engine
from torch import Tensor


class DraftDecoder(Decoder):
    """A draft model, as the engine calls it: on hidden states of its speculative input.

    `borrowed` maps each of its layers to the target's layer whose KV it reads; a layer that
    borrows writes none. Without it, all layers have KV of their own.
    """

    def __init__(
        self,
        engine: Engine,
        model: Model,
        ops: Ops,
        window: int,
        borrowed: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(engine, model, ops, window, None)
        self.borrowed = borrowed or {}
        for layer, lender in self.borrowed.items():
            self.model.attention[layer].layer_id = lender

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: Any,
        input_embeds: Tensor | None = None,
        **named: Any,
    ) -> Any:
        """Return logits and hidden states, of the tokens that the engine samples from alone."""
        model, ops = self.weights, self.ops
        tokens = draft_inputs(
            ops,
            model,
            input_ids,
            forward_batch.spec_info.hidden_states,
            positions,
            torch.full_like(input_ids[:1], input_ids.shape[0], dtype=torch.int32),
            forward_batch.mrope_positions if self.borrowed else None,
        )
        access = FrozenAccess if self.borrowed else Access
        hidden = model.run_layers(ops, tokens, access(self.model, forward_batch))
        rows = sampled_rows(forward_batch)
        return self.says(hidden if rows is None else hidden[rows])

    def says(self, hidden: Tensor) -> Any:
        """Return what the draft model says of hidden states of its own."""
        logits = self.weights.logits(self.ops, hidden)
        return self.output(next_token_logits=logits, hidden_states=hidden)


def sampled_rows(batch: Any) -> Tensor | None:
    """Return the rows that the engine's own logits are of, int64; None where they are of all.

    A draft of fixed width names them, or takes all; another's are those of last tokens.
    """
    named: Tensor | None = getattr(batch.spec_info, "select_index", None)
    if named is not None:
        return named
    return last_rows(batch) if batch.forward_mode.is_extend() else None


class FrozenAccess(Access):
    """KV access of a forward that stores nothing."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Let the engine attend over what is stored."""
        return self.attended(layer, Heads(query, key, value), stores=False)
