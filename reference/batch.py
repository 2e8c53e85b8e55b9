"""A batch: the requests of one forward, how many of their tokens it runs, and where it writes.

A scheduler hands the same batch to the eager run and to the graph run. It contains what an engine's
scheduler knows. Each run derives all further indices, such as attention lists and SWA locations, by
itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from paritybit.reference.config import Role
from paritybit.reference.order import transfer
from paritybit.reference.pool import Tables
from torch import Tensor

from paritybit.compat import StrEnum


class Mode(StrEnum):
    """What a forward does.

    TARGET_VERIFY runs draft tokens through the target. DRAFT proposes tokens with the
    draft model's own KV. FROZEN_DRAFT proposes them with the target's KV, and writes none.
    DRAFT_EXTEND runs the draft model on the tokens that the target has accepted.
    """

    EXTEND = "extend"
    DECODE = "decode"
    TARGET_VERIFY = "target_verify"
    DRAFT = "draft"
    FROZEN_DRAFT = "frozen_draft"
    DRAFT_EXTEND = "draft_extend"

    @property
    def written(self) -> Role | None:
        """The model whose KV a forward writes. None if it writes none."""
        if self is Mode.FROZEN_DRAFT:
            return None
        return Role.DRAFT if self in {Mode.DRAFT, Mode.DRAFT_EXTEND} else Role.TARGET

    @property
    def drafts(self) -> bool:
        """Whether a forward proposes tokens."""
        return self in {Mode.DRAFT, Mode.FROZEN_DRAFT}

    @property
    def advances_states(self) -> bool:
        """Whether a forward runs the target on new tokens, and so advances recurrent states."""
        return self in {Mode.EXTEND, Mode.DECODE, Mode.TARGET_VERIFY}


@dataclass(frozen=True)
class DraftState:
    """Where drafting of a request starts: the likeliest next token and the draft's hidden state.

    topk_p float32 [1], topk_index int64 [1], hidden [H] in the model's dtype.
    """

    topk_p: Tensor
    topk_index: Tensor
    hidden: Tensor


class RequestSpan(NamedTuple):
    """Columns begin .. end-1 of one request's row of req_to_token, which one forward writes.

    - `full_slots`, `swa_slots`: where K and V are stored, one slot per column.
    - `verified`: for verify, the request's last token and its drafts. At least `accept` of the
      drafts are accepted.
    - `state`: for draft, where drafting starts.
    - `track_index`: the request's slot of recurrent state, 0 in an engine without.
    - `token_row`: the request's row of tokens.
    """

    row: int
    token_row: int
    begin: int
    end: int
    full_slots: Sequence[int]
    swa_slots: Sequence[int]
    track_index: int
    verified: tuple[int, ...] = ()
    accept: int = 0
    state: DraftState | None = None

    def positions(self, mode: Mode) -> list[int]:
        """Return the positions of the tokens that a forward first runs for this request."""
        if mode is Mode.DRAFT:
            return [self.begin]
        if mode is Mode.FROZEN_DRAFT:  # The last token that the target wrote.
            return [self.begin - 1]
        return list(range(self.begin, self.end))

    def seq_len(self, mode: Mode) -> int:
        """Return the number of keys of the request, without drafts that are not accepted yet."""
        return self.begin if mode.drafts or mode is Mode.TARGET_VERIFY else self.end


@dataclass(frozen=True)
class ForwardBatch:
    """A batch of B requests and T tokens, in the shapes and dtypes of an engine's scheduler.

    On the device:

    - input_ids, positions, token_rows, token_requests (batch index of the token's request),
      token_cells (index in the flattened table of tokens): int64 [T]
    - out_cache_loc: int64 [N]. N = T, except that a draft takes DRAFT_STEPS slots per request.
    - req_pool_indices, seq_lens, mamba_track_indices: int64 [B]
    - num_token_non_padded: int32 [1]
    - extend_lens, last_rows: int64 [B]. Number of tokens that a batch that extends runs for each
      request, and the row of the last one.

    On the host: `spans`, and `seq_lens_cpu` and `extend_lens_cpu`, int64 [B].

    `spec_info` holds what speculation adds:

    - hidden_states: [T or B, H]
    - topk_p float32 and topk_index int64, [B, 1]
    - extend_seq_lens (also on the host, as extend_seq_lens_cpu), num_correct_drafts and
      num_accept_tokens: int32 [B]
    """

    mode: Mode
    spans: tuple[RequestSpan, ...]
    input_ids: Tensor
    positions: Tensor
    out_cache_loc: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    mamba_track_indices: Tensor
    num_token_non_padded: Tensor
    seq_lens_cpu: Tensor
    token_rows: Tensor
    token_cells: Tensor
    token_requests: Tensor
    extend_lens: Tensor
    extend_lens_cpu: Tensor
    last_rows: Tensor
    spec_info: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def live_requests(self) -> int:
        """The number of live requests."""
        return len(self.spans)

    @property
    def live_tokens(self) -> int:
        """The number of live tokens."""
        return self.positions.shape[0]

    @property
    def longest(self) -> int:
        """The largest number of tokens that a request is extended by."""
        return max(span.end - span.begin for span in self.spans)

    def requests_of_rows(self, rows: int) -> list[int]:
        """Return the batch index of the request of each of `rows` output rows."""
        if rows == self.live_requests:
            return list(range(rows))
        requests: list[int] = self.token_requests.tolist()
        return requests

    def value(self, name: str) -> Tensor | None:
        """Return the tensor called `name`. None if the batch has none."""
        found: Tensor | None = self.spec_info.get(name, getattr(self, name, None))
        return found


def prepare(
    mode: Mode, spans: Sequence[RequestSpan], tokens: Tensor, hidden_states: Tensor, tables: Tables
) -> ForwardBatch:
    """Write the slots of `spans` into the index tables, and return the batch.

    All values that the host knows are copied to the device in one blocking copy.
    """
    host, device = transfer(batch_values(mode, spans, tokens.shape[1]), tokens.device)
    tables.write(device)
    return batch_of(mode, spans, host, device, tokens, hidden_states)


def batch_values(mode: Mode, spans: Sequence[RequestSpan], columns: int) -> dict[str, list[int]]:
    """Return all values of a batch that the host knows, by name.

    `columns` is the length of a row of tokens.
    """
    lists = {**_per_slot(spans), **_per_token(mode, spans, columns), **_per_request(mode, spans)}
    if mode is Mode.TARGET_VERIFY:
        lists["verified"] = [token for span in spans for token in span.verified]
    return lists


SLOT_VALUES = ("row", "column", "out_cache_loc", "swa_slot")
"""The values of a batch that `Tables.write` needs."""

DEVICE_VALUES = (
    *("positions", "token_requests", "token_rows", "token_cells"),
    *("out_cache_loc", "req_pool_indices", "seq_lens", "mamba_track_indices"),
    *("extend_lens", "last_rows"),
)
"""The values that are fields of a batch as they are."""


def batch_of(
    mode: Mode,
    spans: Sequence[RequestSpan],
    host: Mapping[str, Tensor],
    device: Mapping[str, Tensor],
    tokens: Tensor,
    hidden_states: Tensor,
) -> ForwardBatch:
    """Return the batch over `spans`, from its values on the host and on the device.

    `tokens` is int64 [token rows, max_context]. `hidden_states` [token rows, max_context, H] are
    the target's.
    """
    return ForwardBatch(
        mode=mode,
        spans=tuple(spans),
        input_ids=_input_ids(mode, device, tokens),
        num_token_non_padded=device["live_tokens"].to(torch.int32),
        seq_lens_cpu=host["seq_lens"],
        extend_lens_cpu=host["extend_lens"],
        **{name: device[name] for name in DEVICE_VALUES},
        spec_info=_spec_info(mode, spans, host, device, hidden_states),
    )


def _per_slot(spans: Sequence[RequestSpan]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {name: [] for name in SLOT_VALUES}
    for span in spans:
        found["row"] += [span.row] * (span.end - span.begin)
        found["column"] += range(span.begin, span.end)
        found["out_cache_loc"] += span.full_slots
        found["swa_slot"] += span.swa_slots
    return found


def _per_token(mode: Mode, spans: Sequence[RequestSpan], columns: int) -> dict[str, list[int]]:
    requests, rows, positions = list[int](), list[int](), list[int]()
    for request, span in enumerate(spans):
        of_span = span.positions(mode)
        requests += [request] * len(of_span)
        rows += [span.token_row] * len(of_span)
        positions += of_span
    return {
        "token_requests": requests,
        "token_rows": rows,
        "token_cells": [
            row * columns + position for row, position in zip(rows, positions, strict=True)
        ],
        "live_tokens": [len(positions)],
        "positions": positions,
    }


def _per_request(mode: Mode, spans: Sequence[RequestSpan]) -> dict[str, list[int]]:
    extended = [span.end - span.begin for span in spans]
    return {
        "req_pool_indices": [span.row for span in spans],
        "seq_lens": [span.seq_len(mode) for span in spans],
        "mamba_track_indices": [span.track_index for span in spans],
        "extend_lens": extended,
        "last_rows": [end - 1 for end in accumulate(extended)],
    }


def _input_ids(mode: Mode, device: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Return the tokens that a forward runs, int64 [T]."""
    if mode is Mode.TARGET_VERIFY:
        return device["verified"]
    if mode is Mode.DRAFT_EXTEND:  # One token ahead of the target.
        return tokens.view(-1).index_select(0, device["token_cells"] + 1)
    return tokens.view(-1).index_select(0, device["token_cells"])


def _spec_info(
    mode: Mode,
    spans: Sequence[RequestSpan],
    host: Mapping[str, Tensor],
    device: Mapping[str, Tensor],
    hidden_states: Tensor,
) -> dict[str, Tensor]:
    if mode is Mode.DRAFT_EXTEND:
        accepted = device["extend_lens"].to(torch.int32)
        return {
            "hidden_states": hidden_states[device["token_rows"], device["positions"]],
            "extend_seq_lens": accepted,
            "extend_seq_lens_cpu": host["extend_lens"].to(torch.int32),
            "num_accept_tokens": accepted,
            "num_correct_drafts": accepted - 1,
        }
    if mode.drafts:
        states = [span.state for span in spans if span.state is not None]
        return {
            "topk_p": torch.stack([state.topk_p for state in states]),
            "topk_index": torch.stack([state.topk_index for state in states]),
            "hidden_states": torch.stack([state.hidden for state in states]),
        }
    return {}
