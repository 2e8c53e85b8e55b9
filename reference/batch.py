"""One forward's worth of work: which requests, how many tokens of each, and where they write.

A batch is what a scheduler hands to either world. It holds what an engine's
scheduler knows; every further index (attention lists, SWA locations) is each
world's own business.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

MROPE_SECTIONS = 3
TRACK_ROWS = 16
TRACK_INTERVAL = 3
ENCODER_ROWS = 4
TOKEN_COLUMNS = 9


class Mode(StrEnum):
    """What a forward does."""

    DECODE = "decode"
    EXTEND = "extend"


@dataclass(frozen=True)
class Span:
    """Tokens begin .. end-1 of one request, to be run in one forward.

    `full_slots` and `swa_slots` are where their K and V go, one per token.
    The payloads stand for multimodal positions, state tracking and cross attention.
    """

    row: int
    token_row: int
    begin: int
    end: int
    full_slots: Sequence[int]
    swa_slots: Sequence[int]
    mrope_delta: int
    track_index: int
    encoder_len: int


@dataclass(frozen=True)
class ForwardBatch:
    """B requests with T tokens in all. Shapes and dtypes as an engine's scheduler makes them.

    Device: input_ids, positions, out_cache_loc, mamba_track_indices, encoder_lens int64 [T];
    mamba_track_mask bool [T]; mrope_positions int64 [3, T]; req_pool_indices, seq_lens
    int64 [B]; num_token_non_padded int32 [1]; token_rows int64 [T], the rows of the token
    table. Host: `spans`, `seq_lens_cpu` int64 [B].
    seq_lens count the keys after this forward.
    """

    mode: Mode
    spans: tuple[Span, ...]
    input_ids: Tensor
    positions: Tensor
    mrope_positions: Tensor
    out_cache_loc: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    mamba_track_indices: Tensor
    mamba_track_mask: Tensor
    encoder_lens: Tensor
    num_token_non_padded: Tensor
    seq_lens_cpu: Tensor
    token_rows: Tensor

    @property
    def raw_bs(self) -> int:
        """Live requests."""
        return len(self.spans)

    @property
    def raw_num_token(self) -> int:
        """Live tokens."""
        return self.out_cache_loc.shape[0]

    def select(self, rows: Sequence[int]) -> "ForwardBatch":
        """Return the decode batch of the requests at `rows` of this one, in that order."""
        index = torch.tensor(rows, device=self.out_cache_loc.device)
        count = torch.full_like(self.num_token_non_padded, len(rows))
        picked = {
            each.name: getattr(self, each.name)[..., index]
            for each in fields(self)
            if each.name not in {"mode", "spans", "seq_lens_cpu", "num_token_non_padded"}
        }
        return replace(
            self,
            spans=tuple(self.spans[row] for row in rows),
            seq_lens_cpu=self.seq_lens_cpu[list(rows)],
            num_token_non_padded=count,
            **picked,
        )


def prepare(mode: Mode, spans: Sequence[Span], tokens: Tensor, tables: "Tables") -> ForwardBatch:
    """Write the slots of `spans` into the index tables and return the batch over them.

    `tokens` is int64 [token rows, max_context]. Everything the host knows crosses
    to the device in one blocking copy: a copy still in flight must not be possible.
    """
    per_token = [
        (
            span.row,
            span.token_row,
            full,
            swa,
            position,
            span.mrope_delta,
            span.track_index,
            position % TRACK_INTERVAL == TRACK_INTERVAL - 1,
            span.encoder_len,
        )
        for span in spans
        for position, full, swa in zip(
            range(span.begin, span.end), span.full_slots, span.swa_slots, strict=True
        )
    ]
    per_request = [(span.row, span.end) for span in spans]
    count, requests = len(per_token), len(spans)
    packed = torch.from_numpy(
        np.concatenate([np.array(per_token).T.ravel(), np.array(per_request).T.ravel()])
    )
    on_device = packed.to(tokens.device)
    token_part, request_part = on_device.split([TOKEN_COLUMNS * count, 2 * requests])
    rows, token_rows, full, swa, positions, delta, track, mask, encoder = token_part.view(
        TOKEN_COLUMNS, count
    )
    pool_rows, seq_lens = request_part.view(2, requests)
    tables.write(rows, positions, full, swa)
    section = torch.arange(MROPE_SECTIONS, device=tokens.device)[:, None]
    return ForwardBatch(
        mode=mode,
        spans=tuple(spans),
        input_ids=tokens[token_rows, positions],
        positions=positions,
        mrope_positions=positions + section * delta,
        out_cache_loc=full,
        req_pool_indices=pool_rows,
        seq_lens=seq_lens,
        mamba_track_indices=track,
        mamba_track_mask=mask.bool(),
        encoder_lens=encoder,
        num_token_non_padded=torch.full((1,), count, dtype=torch.int32, device=tokens.device),
        seq_lens_cpu=packed[-requests:],
        token_rows=token_rows,
    )


@dataclass(frozen=True)
class Tables:
    """The index tables a batch's slots are written to."""

    req_to_token: Tensor
    full_to_swa_index_mapping: Tensor

    def write(self, rows: Tensor, positions: Tensor, full: Tensor, swa: Tensor) -> None:
        """Map (row, position) to its full slot and the full slot to its SWA slot; all int64 [T]."""
        self.req_to_token[rows, positions] = full.to(torch.int32)
        self.full_to_swa_index_mapping[full] = swa
