"""One forward's worth of work: which requests, how many of their tokens, and where they write.

A batch is what a scheduler hands to the eager world and to the graph world. It holds what
an engine's scheduler knows; every further index (attention lists, SWA locations) a world
derives by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from paritybit.reference.config import SPECULATION, Role
from paritybit.reference.pool import Tables
from paritybit.reference.state_pool import HiddenStates
from paritybit.reference.transfer import transfer
from torch import Tensor

from paritybit.compat import StrEnum

MROPE_SECTIONS = 3
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
        """The model whose KV a forward writes; None if it writes none."""
        if self is Mode.FROZEN_DRAFT:
            return None
        return Role.DRAFT if self in {Mode.DRAFT, Mode.DRAFT_EXTEND} else Role.TARGET

    @property
    def drafts(self) -> bool:
        """Whether a forward proposes tokens, `topk` branches of every request at a time."""
        return self in {Mode.DRAFT, Mode.FROZEN_DRAFT}

    @property
    def speculates(self) -> bool:
        """Whether a forward proposes tokens, verifies them or prepares for the next proposal."""
        return self.drafts or self in {Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND}


@dataclass(frozen=True)
class DraftState:
    """Where drafting of a request starts: the likeliest next tokens and the draft's hidden state.

    topk_p float32 [topk], topk_index int64 [topk], hidden [H] in the model's dtype; `topk` is 1
    for an engine that drafts chains.
    """

    topk_p: Tensor
    topk_index: Tensor
    hidden: Tensor


class Span(NamedTuple):
    """Columns begin .. end-1 of one request's row of req_to_token, written in one forward.

    `full_slots` and `swa_slots` are where K and V go, one per column. To verify, `tree`
    holds (token, parent) of every draft token, the root first, its parent -1; at least
    `accept` of the drafts are accepted. To draft, `state` is where drafting starts.
    `mrope_delta` stands for multimodal positions, `encoder_len` for cross attention.
    `track_index` is the request's slot of recurrent state, 0 in an engine without, and
    `tracked` says whether the state enters the request's input. `token_row` is the request's
    row of tokens, `lora_id` its adapter. Each step makes many: a frozen dataclass takes three
    times as long to make.
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
    lora_id: int = 0

    @property
    def branches(self) -> int:
        """How many branches a draft of it keeps: one of each token that its state starts from."""
        return SPECULATION.topk if self.state is None else len(self.state.topk_p)

    @property
    def depths(self) -> list[int]:
        """How far every node of the tree is from its root, in tokens."""
        found: list[int] = []
        for _, parent in self.tree:
            found.append(found[parent] + 1 if parent >= 0 else 0)
        return found

    def positions(self, mode: Mode) -> list[int]:
        """Return the positions of the tokens that a forward runs for this request at first."""
        if mode is Mode.TARGET_VERIFY:
            return [self.begin + depth for depth in self.depths]
        if mode is Mode.DRAFT:
            return [self.begin] * self.branches
        if mode is Mode.FROZEN_DRAFT:  # The last token that the target wrote.
            return [self.begin - 1] * self.branches
        return list(range(self.begin, self.end))

    def seq_len(self, mode: Mode) -> int:
        """Return the batch's key count of the request, without drafts not yet accepted."""
        return self.begin if mode.drafts or mode is Mode.TARGET_VERIFY else self.end

    def tree_mask(self) -> list[bool]:
        """Return which keys the draft tokens see: [draft tokens, begin + draft tokens], flat."""
        seen: list[list[bool]] = []
        for place, (_, parent) in enumerate(self.tree):
            row = list(seen[parent]) if parent >= 0 else [False] * len(self.tree)
            row[place] = True
            seen.append(row)
        return [bit for row in seen for bit in [True] * self.begin + row]


@dataclass(frozen=True)
class ForwardBatch:
    """B requests with T tokens in all. Shapes and dtypes as an engine's scheduler makes them.

    Device: input_ids, positions, token_rows int64 [T]; token_cells int64 [T], where tokens lie in
    the world's table of tokens laid end to end; mrope_positions int64 [3, T];
    out_cache_loc int64 [N], where N = T except for a draft, which takes topk x steps slots a
    request; req_pool_indices, seq_lens, mamba_track_indices, encoder_lens, lora_ids int64 [B];
    mamba_track_mask bool [B]; num_token_non_padded int32 [1]; token_requests int64 [T], the
    batch index of the request that a token belongs to; extend_lens, last_rows int64 [B], of a
    batch that extends: how many tokens of each request it runs, and the row of the last of them.
    Host: `spans`, `seq_lens_cpu`, `extend_lens_cpu` int64 [B].
    `spec_info` holds what speculation adds: custom_mask bool [M], M the sum over the requests
    of draft tokens x keys; hidden_states [T or B, H]; topk_p float32 and topk_index int64
    [B, topk]; extend_seq_lens, num_correct_drafts, num_accept_tokens int32 [B].
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
    lora_ids: Tensor
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
        """Live requests."""
        return len(self.spans)

    @property
    def extends(self) -> bool:
        """Whether it computes tokens of the target that are known already."""
        return self.mode is Mode.EXTEND

    @property
    def live_tokens(self) -> int:
        """Live tokens."""
        return self.positions.shape[0]

    @property
    def longest(self) -> int:
        """The most tokens that a request extends by."""
        return max(span.end - span.begin for span in self.spans)

    def requests_of_rows(self, rows: int) -> list[int]:
        """Return which request of the batch each row of an output of `rows` rows belongs to."""
        if rows == self.live_requests:
            return list(range(rows))
        requests: list[int] = self.token_requests.tolist()
        return requests

    def value(self, name: str) -> Tensor | None:
        """Return the tensor called `name`, if the batch carries one."""
        found: Tensor | None = self.spec_info.get(name, getattr(self, name, None))
        return found


def prepare(
    mode: Mode, spans: Sequence[Span], tokens: Tensor, hidden_states: HiddenStates, tables: Tables
) -> ForwardBatch:
    """Write the slots of `spans` into the index tables and return the batch over them.

    Everything the host knows crosses to the device in one blocking copy.
    """
    host, device = transfer(batch_values(mode, spans, tokens.shape[1]), tokens.device)
    write_slots(tables, device)
    return batch_of(mode, spans, host, device, tokens, hidden_states)


def batch_values(mode: Mode, spans: Sequence[Span], columns: int) -> dict[str, list[int]]:
    """Return all that the host knows of a batch, by name; token rows have so many columns."""
    lists = {**_per_slot(spans), **_per_token(mode, spans, columns), **_per_request(mode, spans)}
    if mode is Mode.TARGET_VERIFY:
        lists["tree_token"] = [token for span in spans for token, _ in span.tree]
        lists["tree_mask"] = packed([bit for span in spans for bit in span.tree_mask()])
    return lists


def packed(bits: Sequence[bool]) -> list[int]:
    """Return bits as `unpacked` finds them: eight of them, a byte each, in every number."""
    return memoryview(bytes(bits) + bytes(-len(bits) % 8)).cast("q").tolist()


def unpacked(numbers: Tensor, count: int) -> Tensor:
    """Return so many bits, bool [count], that were packed into numbers int64."""
    return numbers.view(torch.bool)[:count]


SLOT_VALUES = ("row", "column", "full_slot", "swa_slot")
"""The values of a batch that its slots are written to the index tables from."""


def write_slots(tables: Tables, device: Mapping[str, Tensor]) -> None:
    """Write the slots of a batch into the index tables, from its values on the device."""
    tables.write(*(device[name] for name in SLOT_VALUES))


def batch_of(
    mode: Mode,
    spans: Sequence[Span],
    host: Mapping[str, Tensor],
    device: Mapping[str, Tensor],
    tokens: Tensor,
    hidden_states: HiddenStates,
) -> ForwardBatch:
    """Return the batch over `spans`, from its values on the host and on the device.

    `tokens` is int64 [token rows, max_context], `hidden_states` [token rows, max_context,
    H], the target's.
    """
    return ForwardBatch(
        mode=mode,
        spans=tuple(spans),
        input_ids=_input_ids(mode, device, tokens),
        positions=device["position"],
        mrope_positions=device["mrope_position"].view(MROPE_SECTIONS, -1),
        out_cache_loc=device["full_slot"],
        req_pool_indices=device["request_row"],
        seq_lens=device["seq_len"],
        mamba_track_indices=device["track_index"],
        mamba_track_mask=unpacked(device["tracked"], len(spans)),
        encoder_lens=device["encoder_len"],
        lora_ids=device["lora_id"],
        num_token_non_padded=device["live_tokens"].view(torch.int32)[:1],
        seq_lens_cpu=host["seq_len"],
        token_rows=device["token_row"],
        token_cells=device["token_cell"],
        token_requests=device["token_request"],
        extend_lens=device["extend_len"],
        extend_lens_cpu=host["extend_len"],
        last_rows=device["last_row"],
        spec_info=_spec_info(mode, spans, device, hidden_states),
    )


def _per_slot(spans: Sequence[Span]) -> dict[str, list[int]]:
    """Return, for every column that is written, where it lies and the slots it is mapped to.

    Raises ValueError for a span that has not a slot of both kinds for each of its columns.
    """
    found: dict[str, list[int]] = {name: [] for name in SLOT_VALUES}
    for span in spans:
        count = span.end - span.begin
        if not count == len(span.full_slots) == len(span.swa_slots):
            raise ValueError(f"the request in row {span.row} has the wrong number of slots")
        found["row"] += [span.row] * count
        found["column"] += range(span.begin, span.end)
        found["full_slot"] += span.full_slots
        found["swa_slot"] += span.swa_slots
    return found


def _per_token(mode: Mode, spans: Sequence[Span], columns: int) -> dict[str, list[int]]:
    """Return, for every token that is run, its request, its place and its positions.

    And how many they are, which is read as int32: the first half of a number.
    """
    requests, rows, positions, deltas = list[int](), list[int](), list[int](), list[int]()
    for request, span in enumerate(spans):
        of_span = span.positions(mode)
        requests += [request] * len(of_span)
        rows += [span.token_row] * len(of_span)
        deltas += [span.mrope_delta] * len(of_span)
        positions += of_span
    return {
        "token_request": requests,
        "token_row": rows,
        "token_cell": [
            row * columns + position for row, position in zip(rows, positions, strict=True)
        ],
        "live_tokens": [len(positions)],
        "position": positions,
        "mrope_position": [
            position + section * delta
            for section in range(MROPE_SECTIONS)
            for position, delta in zip(positions, deltas, strict=True)
        ],
    }


def _per_request(mode: Mode, spans: Sequence[Span]) -> dict[str, list[int]]:
    """Return, for every request, its row of `req_to_token`, its lengths and its payloads."""
    extended = [span.end - span.begin for span in spans]
    return {
        "request_row": [span.row for span in spans],
        "seq_len": [span.seq_len(mode) for span in spans],
        "track_index": [span.track_index for span in spans],
        "tracked": packed([span.tracked for span in spans]),
        "encoder_len": [span.encoder_len for span in spans],
        "lora_id": [span.lora_id for span in spans],
        "extend_len": extended,
        "last_row": [end - 1 for end in accumulate(extended)],
    }


def _input_ids(mode: Mode, device: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Return the tokens that a forward runs, int64 [T]."""
    if mode is Mode.TARGET_VERIFY:
        return device["tree_token"]
    if mode is Mode.DRAFT_EXTEND:  # The draft's input runs one token ahead of the target's.
        return tokens.view(-1).index_select(0, device["token_cell"] + 1)
    return tokens.view(-1).index_select(0, device["token_cell"])


def _spec_info(
    mode: Mode, spans: Sequence[Span], device: Mapping[str, Tensor], hidden_states: HiddenStates
) -> dict[str, Tensor]:
    """Return what speculation adds to a batch; see `ForwardBatch`."""
    if mode is Mode.TARGET_VERIFY:
        bits = sum(len(span.tree) * (span.begin + len(span.tree)) for span in spans)
        return {"custom_mask": unpacked(device["tree_mask"], bits)}
    if mode is Mode.DRAFT_EXTEND:
        accepted = device["extend_len"].to(torch.int32)
        return {
            "hidden_states": hidden_states[device["token_row"], device["position"]],
            "extend_seq_lens": accepted,
            "num_accept_tokens": accepted,
            "num_correct_drafts": accepted - 1,
        }
    if mode.drafts:
        states = [_state(span) for span in spans]
        return {
            "topk_p": torch.stack([state.topk_p for state in states]),
            "topk_index": torch.stack([state.topk_index for state in states]),
            "hidden_states": torch.stack([state.hidden for state in states]),
        }
    return {}


def _state(span: Span) -> DraftState:
    if span.state is None:
        raise ValueError(f"the request in row {span.row} has no state to draft from")
    return span.state
