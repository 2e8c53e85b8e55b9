"""The reference: eager prefill and decode, every index computed afresh in every layer.

No static buffers, no memo, no fast path: slot lists come from `req_to_token`, SWA
slots from the mapping, each time they are needed.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reference.batch import ForwardBatch, Mode
from reference.config import Kind
from reference.model import Model, TokenInputs
from reference.ops import Ops
from reference.pool import LOC_DTYPE, HybridKVPool


@dataclass(frozen=True)
class Visible:
    """Which positions the tokens of a batch see on layers of one kind, token by token.

    `indptr` int32 [T+1] bounds each token's keys; `row` and `position` int64 [N] are
    their places in `req_to_token`.
    """

    indptr: Tensor
    row: Tensor
    position: Tensor


def visible(batch: ForwardBatch, window: int) -> dict[Kind, Visible]:
    """List what each token sees: all keys up to itself, or the last `window` of them."""
    lists = [_listed(batch, None), _listed(batch, window)]
    flat = torch.tensor([number for each in lists for part in each for number in part])
    on_device = flat.to(batch.out_cache_loc.device)
    parts = on_device.split([len(part) for each in lists for part in each])
    return {
        kind: Visible(bounds.to(torch.int32), row, position)
        for kind, (bounds, row, position) in zip(
            (Kind.FULL, Kind.SWA), (parts[:3], parts[3:]), strict=True
        )
    }


def _listed(batch: ForwardBatch, window: int | None) -> tuple[list[int], list[int], list[int]]:
    """Return the bounds, rows and positions of `Visible` as lists."""
    bounds = [0]
    rows: list[int] = []
    positions: list[int] = []
    for span in batch.spans:
        for position in range(span.begin, span.end):
            first = 0 if window is None else max(0, position - window + 1)
            positions += range(first, position + 1)
            rows += [span.row] * (position + 1 - first)
            bounds.append(len(rows))
    return bounds, rows, positions


class EagerKV:
    """KV access of one eager forward: slots are looked up in the pool's tables in every layer."""

    def __init__(self, ops: Ops, model: Model, pool: HybridKVPool, batch: ForwardBatch) -> None:
        self.ops = ops
        self.model = model
        self.pool = pool
        self.batch = batch
        self.visible = visible(batch, model.config.window)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store at the batch's slots, then attend to each token's own visible slots."""
        config = self.model.config
        kind = config.layers[layer]
        cache = self.pool.cache(layer)
        seen = self.visible[kind]
        write_slots = self.batch.out_cache_loc
        read_slots = self.pool.req_to_token[seen.row, seen.position]
        if kind is Kind.SWA:
            write_slots = self.pool.full_to_swa_index_mapping[write_slots]
            read_slots = self.pool.full_to_swa_index_mapping[read_slots]
        read_slots = read_slots.to(torch.int64)
        self.ops.store_kv(cache, write_slots.to(LOC_DTYPE[kind]), LOC_DTYPE[kind], key, value)
        max_keys = config.window if kind is Kind.SWA else config.max_context
        sinks = self.model.layers[layer].sinks
        return self.ops.attention(query, cache, seen.indptr, read_slots, sinks, max_keys)


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
