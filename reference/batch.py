"""One forward's worth of work: which requests, how many tokens of each, and where they write.

A batch is what a scheduler hands to either world. It holds what an engine's
scheduler knows; every further index (attention lists, SWA locations) is each
world's own business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reference.config import SPECULATION, Role
from reference.pool import Tables

MROPE_SECTIONS = 3
TRACK_ROWS = 16
TRACK_INTERVAL = 3
ENCODER_ROWS = 4


class Mode(StrEnum):
    """What a forward does.

    TARGET_VERIFY runs a tree of draft tokens through the target. DRAFT proposes tokens
    with the draft model's own KV, FROZEN_DRAFT reads the target's and writes none.
    DRAFT_EXTEND lets the draft model catch up with the target.
    """

    EXTEND = "extend"
    DECODE = "decode"
    TARGET_VERIFY = "target_verify"
    DRAFT = "draft"
    FROZEN_DRAFT = "frozen_draft"
    DRAFT_EXTEND = "draft_extend"

    @property
    def written(self) -> Role | None:
        """Whose KV a forward writes; None for no one's."""
        if self is Mode.FROZEN_DRAFT:
            return None
        return Role.DRAFT if self in {Mode.DRAFT, Mode.DRAFT_EXTEND} else Role.TARGET

    @property
    def drafts(self) -> bool:
        """Whether a forward proposes tokens, `topk` branches of each request at a time."""
        return self in {Mode.DRAFT, Mode.FROZEN_DRAFT}


@dataclass(frozen=True)
class DraftState:
    """Where drafting of a request starts: the likeliest next tokens and the draft's hidden state.

    topk_p float32 [topk], topk_index int64 [topk], hidden [H] in the model's dtype.
    """

    topk_p: Tensor
    topk_index: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class Span:
    """Columns begin .. end-1 of one request's row of req_to_token, written in one forward.

    `full_slots` and `swa_slots` are where K and V go, one per column. To verify, `tree`
    holds (token, parent) of each draft token, the root first, parent -1, of which at least
    `accept` drafts are to pass; to draft, `state` says where from. The payloads stand for
    multimodal positions, state tracking and cross attention.
    """

    row: int
    token_row: int
    begin: int
    end: int
    full_slots: Sequence[int]
    swa_slots: Sequence[int]
    mrope_delta: int
    track_index: int
    tracked: bool
    encoder_len: int
    tree: tuple[tuple[int, int], ...] = ()
    accept: int = 0
    state: DraftState | None = None

    @property
    def depths(self) -> list[int]:
        """How far each node of the tree is from its root, in tokens."""
        found: list[int] = []
        for _, parent in self.tree:
            found.append(found[parent] + 1 if parent >= 0 else 0)
        return found

    def positions(self, mode: Mode) -> list[int]:
        """Return the position of each token that a forward runs for this request at first."""
        if mode is Mode.TARGET_VERIFY:
            return [self.begin + depth for depth in self.depths]
        if mode is Mode.DRAFT:
            return [self.begin] * SPECULATION.topk
        if mode is Mode.FROZEN_DRAFT:  # It stands where the target wrote last.
            return [self.begin - 1] * SPECULATION.topk
        return list(range(self.begin, self.end))

    def seq_len(self, mode: Mode) -> int:
        """Return how many keys the batch says the request has: drafts not yet accepted apart."""
        return self.begin if mode.drafts or mode is Mode.TARGET_VERIFY else self.end

    def tree_mask(self) -> list[bool]:
        """Return which keys each draft token sees: [draft tokens, begin + draft tokens], flat."""
        seen: list[list[bool]] = []
        for place, (_, parent) in enumerate(self.tree):
            row = list(seen[parent]) if parent >= 0 else [False] * len(self.tree)
            row[place] = True
            seen.append(row)
        return [bit for row in seen for bit in [True] * self.begin + row]


@dataclass(frozen=True)
class ForwardBatch:
    """B requests with T tokens in all. Shapes and dtypes as an engine's scheduler makes them.

    Device: input_ids, positions, token_rows int64 [T]; mrope_positions int64 [3, T];
    out_cache_loc int64 [N], N = T but for a draft, which takes topk x steps slots a request;
    req_pool_indices, seq_lens, mamba_track_indices, encoder_lens int64 [B]; mamba_track_mask
    bool [B]; num_token_non_padded int32 [1]; token_requests int64 [T], which request a token
    is of. Host: `spans`, `seq_lens_cpu` int64 [B].
    `spec_info` holds what speculation adds: custom_mask bool [draft tokens x keys of each
    request]; hidden_states [T or B, H]; topk_p float32 and topk_index int64 [B, topk];
    extend_seq_lens, num_correct_drafts, num_accept_tokens int32 [B].
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
    token_requests: Tensor
    spec_info: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def live_requests(self) -> int:
        """Live requests."""
        return len(self.spans)

    @property
    def live_tokens(self) -> int:
        """Live tokens."""
        return self.positions.shape[0]

    def value(self, name: str) -> Tensor | None:
        """Return the tensor called `name`, if the batch carries one."""
        found: Tensor | None = self.spec_info.get(name, getattr(self, name, None))
        return found


def prepare(
    mode: Mode, spans: Sequence[Span], tokens: Tensor, hidden_states: Tensor, tables: Tables
) -> ForwardBatch:
    """Write the slots of `spans` into the index tables and return the batch over them.

    `tokens` is int64 [token rows, max_context], `hidden_states` [token rows, max_context,
    H], the target's. Everything the host knows crosses to the device in one blocking copy:
    a copy still in flight must not be possible.
    """
    per_slot = [
        (span.row, column, full, swa)
        for span in spans
        for column, full, swa in zip(
            range(span.begin, span.end), span.full_slots, span.swa_slots, strict=True
        )
    ]
    per_token = [
        (request, span.token_row, position, span.mrope_delta)
        for request, span in enumerate(spans)
        for position in span.positions(mode)
    ]
    per_request = [
        (
            span.row,
            span.seq_len(mode),
            span.track_index,
            span.tracked,
            span.encoder_len,
            span.end - span.begin,
        )
        for span in spans
    ]
    tree_tokens = [token for span in spans for token, _ in span.tree]
    tree_mask = [bit for span in spans for bit in span.tree_mask()]
    packed = [
        np.array(each, dtype=np.int64).T.ravel()
        for each in (per_slot, per_token, per_request, tree_tokens, tree_mask)
    ]
    on_host = torch.from_numpy(np.concatenate(packed))
    on_device = on_host.to(tokens.device)
    slots, token_part, requests, drafted, mask = on_device.split([each.size for each in packed])
    rows, columns, full, swa = slots.view(4, -1)
    token_requests, token_rows, positions, delta = token_part.view(4, -1)
    pool_rows, seq_lens, track, tracked, encoder, counts = requests.view(6, -1)
    tables.write(rows, columns, full, swa)
    first_request = packed[0].size + packed[1].size
    section = torch.arange(MROPE_SECTIONS, device=tokens.device)[:, None]
    spec_info: dict[str, Tensor] = {}
    input_ids = tokens[token_rows, positions]
    if mode is Mode.TARGET_VERIFY:
        input_ids = drafted
        spec_info = {"custom_mask": mask.bool()}
    elif mode is Mode.DRAFT_EXTEND:  # The draft's input runs one token ahead of the target's.
        input_ids = tokens[token_rows, positions + 1]
        accepted = counts.to(torch.int32)
        spec_info = {
            "hidden_states": hidden_states[token_rows, positions],
            "extend_seq_lens": accepted,
            "num_accept_tokens": accepted,
            "num_correct_drafts": accepted - 1,
        }
    elif mode.drafts:
        spec_info = _stacked([span.state for span in spans])
    return ForwardBatch(
        mode=mode,
        spans=tuple(spans),
        input_ids=input_ids,
        positions=positions,
        mrope_positions=positions + section * delta,
        out_cache_loc=full,
        req_pool_indices=pool_rows,
        seq_lens=seq_lens,
        mamba_track_indices=track,
        mamba_track_mask=tracked.bool(),
        encoder_lens=encoder,
        num_token_non_padded=torch.full(
            (1,), len(per_token), dtype=torch.int32, device=tokens.device
        ),
        seq_lens_cpu=on_host[first_request + len(spans) : first_request + 2 * len(spans)],
        token_rows=token_rows,
        token_requests=token_requests,
        spec_info=spec_info,
    )


def _stacked(states: Sequence[Any]) -> dict[str, Tensor]:
    return {
        "topk_p": torch.stack([each.topk_p for each in states]),
        "topk_index": torch.stack([each.topk_index for each in states]),
        "hidden_states": torch.stack([each.hidden for each in states]),
    }
