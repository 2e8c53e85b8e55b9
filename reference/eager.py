"""The reference: eager prefill and decode, every index computed afresh in every layer.

No static buffers, no memo, no fast path: slot lists come from `req_to_token`, SWA
slots from the mapping, each time they are needed.
"""

import numpy as np
import torch
from torch import Tensor

from reference.batch import ForwardBatch, Mode
from reference.config import Kind
from reference.model import Model, TokenInputs
from reference.ops import Ops
from reference.pool import LOC_DTYPE, HybridKVPool


class EagerKV:
    """KV access of one eager forward."""

    def __init__(self, ops: Ops, model: Model, pool: HybridKVPool, batch: ForwardBatch) -> None:
        self.ops = ops
        self.model = model
        self.pool = pool
        self.batch = batch

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store at the batch's slots, then attend to each token's own visible slots."""
        config = self.model.config
        kind = config.layers[layer]
        cache = self.pool.cache(layer)
        self.ops.store_kv(cache, self._write_slots(kind), LOC_DTYPE[kind], key, value)
        max_keys = config.window if kind is Kind.SWA else config.max_context
        indptr, slots = self._visible_slots(kind)
        sinks = self.model.layers[layer].sinks
        return self.ops.attention(query, cache, indptr, slots, sinks, max_keys)

    def _write_slots(self, kind: Kind) -> Tensor:
        loc = self.batch.out_cache_loc
        if kind is Kind.SWA:
            loc = self.pool.full_to_swa_index_mapping[loc]
        return loc.to(LOC_DTYPE[kind])

    def _visible_slots(self, kind: Kind) -> tuple[Tensor, Tensor]:
        """List, token by token, the slots of the keys it sees: indptr int32 [T+1], slots int64."""
        rows: list[int] = []
        columns: list[int] = []
        lengths = [0]
        for span in self.batch.spans:
            for position in range(span.begin, span.end):
                first = max(0, position - self.model.config.window + 1) if kind is Kind.SWA else 0
                visible = range(first, position + 1)
                rows.extend([span.row] * len(visible))
                columns.extend(visible)
                lengths.append(len(visible))
        packed = np.concatenate([np.cumsum(lengths), rows, columns])
        index = torch.from_numpy(packed).to(self.pool.device)
        indptr, row, column = index.split([len(lengths), len(rows), len(columns)])
        slots = self.pool.req_to_token[row, column].to(torch.int64)
        if kind is Kind.SWA:
            slots = self.pool.full_to_swa_index_mapping[slots]
        return indptr.to(torch.int32), slots


class EagerDecoder:
    """Runs batches eagerly over one pool."""

    def __init__(self, ops: Ops, model: Model, pool: HybridKVPool) -> None:
        self.ops = ops
        self.model = model
        self.pool = pool

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Store the batch's KV and return the logits [B, vocab] of each request's last token."""
        access = EagerKV(self.ops, self.model, self.pool, batch)
        return self.model.forward(self.ops, live_inputs(batch), access, last_rows(batch))


def live_inputs(batch: ForwardBatch) -> TokenInputs:
    """Return the batch's own tensors as model inputs: every row is live."""
    return TokenInputs(
        input_ids=batch.input_ids,
        positions=batch.positions,
        mrope_positions=batch.mrope_positions,
        track_indices=batch.mamba_track_indices,
        track_mask=batch.mamba_track_mask,
        encoder_lens=batch.encoder_lens,
        live_tokens=batch.num_token_non_padded,
        token_count=batch.num_token_non_padded,
    )


def last_rows(batch: ForwardBatch) -> Tensor | None:
    """Return the row of each request's last token, int64 [B], or None where that is every row."""
    if batch.mode is Mode.DECODE:
        return None
    ends = np.cumsum([span.end - span.begin for span in batch.spans])
    return torch.from_numpy(ends - 1).to(batch.out_cache_loc.device)
