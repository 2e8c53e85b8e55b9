"""Our decoder over KV in blocks: it attends by what an engine's metadata says of a batch."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from paritybit.reference.config import SPECULATION, Kind
from paritybit.reference.model import Model, TokenInputs, most_keys
from paritybit.reference.ops import Ops
from paritybit.subjects.engines.paged.keys import listed_keys
from paritybit.subjects.engines.paged.pages import Cache
from paritybit.subjects.engines.shared.inputs import token_inputs
from torch import Tensor


class PagedDecoder(torch.nn.Module, ABC):
    """An engine calls `forward` as it does any model's; logits are computed outside of it.

    `masked` says whether a forward is to verify drafts: keys are then listed as the reference
    lists them for a tree.
    """

    masked = False

    def __init__(self, model: Model, ops: Ops) -> None:
        super().__init__()
        self.weights = model
        self.ops = ops

    def forward(self, input_ids: Tensor, positions: Tensor, *rest: Any, **named: Any) -> Any:
        """Return the hidden states of every token, padded ones included."""
        return self.weights.run_layers(self.ops, self.inputs(input_ids, positions), self)

    def inputs(self, input_ids: Tensor, positions: Tensor) -> TokenInputs:
        """Return what the engine gives of tokens as our model takes it."""
        ids, sections = input_ids.to(torch.int64), positions.expand(3, -1)
        return token_inputs(self.weights, self.ops, ids, positions, sections)

    @abstractmethod
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Let the engine store a layer's key and value, and return what its tokens attend to."""

    def attended(
        self,
        layer: int,
        query: Tensor,
        cache: Cache,
        starts: Tensor,
        lengths: Tensor,
        table: Tensor,
    ) -> Tensor:
        """Return what tokens attend to by our arithmetic: see `listed_keys`."""
        config, (keys, values) = self.weights.config, cache
        kind = config.layers[layer]
        most = most_keys(config, kind, masked=self.masked)
        slots, begin, end, seen = listed_keys(
            query.shape[0],
            starts,
            lengths,
            table,
            most,
            config.window if kind is Kind.SWA else None,
            SPECULATION.draft_tokens if self.masked else 1,
            keys.shape[1],
        )
        stored = torch.stack((keys.flatten(0, 1), values.flatten(0, 1)))
        sinks = self.weights.layers[layer].sinks
        mask = (seen, begin) if self.masked else ()
        return self.ops.attention(query, stored, begin, end, slots, sinks, most, *mask)
