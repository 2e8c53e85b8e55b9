"""The required content of each runner's static inputs: the live part, and the tail if it is reset.

This is independent of the contracts in `subjects/`, on purpose, so that an error in a contract is
detected.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.batch import ForwardBatch
from paritybit.reference.config import SPECULATION, ModelConfig, Role
from torch import Tensor

K = SPECULATION.draft_tokens
ACCEPTED = SPECULATION.extend_tokens

Live = Callable[[ForwardBatch, Observation], Tensor]
"""Returns the required live part of a static input in the batch's dtype."""


@dataclass(frozen=True)
class Expected:
    """One static input: its live part, and its tail up to the end of a bucket.

    - `per_bucket`: elements or rows for a bucket of size 1.
    - `fill`: the value of the tail, or None if padding keeps it.
    - `live`: returns the live part. None if the input is never populated.
    - `swa`: the input only exists if SWA locations are preset.
    - `wide`: the elements are along the last axis.
    - `per_branch`: `per_bucket` counts for each branch of a draft.
    """

    per_bucket: int
    fill: int | None
    live: Live | None
    swa: bool = False
    wide: bool = False
    per_branch: bool = False

    def of(self, config: ModelConfig, bucket: int) -> int:
        """Return the elements (or rows) that a bucket has of it."""
        return bucket * self.per_bucket * (config.speculation.topk if self.per_branch else 1)


CONVERTED: Mapping[str, torch.dtype] = dict.fromkeys(
    ("seq_lens", "seq_lens_cpu", "encoder_lens"), torch.int32
)
"""The dtypes of the static inputs whose copy from the batch converts, by name.

If such an input had the batch's dtype in all runners, no copy would convert and no two runners
would disagree, so only this table can detect it.
"""


@dataclass(frozen=True)
class ExpectedInputs:
    """The static inputs of one runner.

    - `rows`: the inputs by name.
    - `only_padded`: a replay without padding reads none of them.
    - `bucket_tokens`: tokens of a bucket of size 1, if token counts are static inputs.
    - `dtypes`: the dtypes of inputs that a copy may convert. They differ between runners, so a
      legitimate conversion could hide that a runner has the input of another one.
    """

    rows: Mapping[str, Expected]
    only_padded: bool = False
    bucket_tokens: int | None = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=lambda: CONVERTED)


def carried(name: str) -> Live:
    """Return a `Live` that takes a tensor of the batch unchanged."""

    def live(batch: ForwardBatch, observation: Observation) -> Tensor:
        values = batch.value(name)
        assert values is not None
        return values

    return live


def per_branch(name: str) -> Live:
    """Return a `Live` that repeats a tensor of the batch for each branch of a draft."""

    def live(batch: ForwardBatch, observation: Observation) -> Tensor:
        topk = observation.layout.configs[Role.DRAFT].speculation.topk
        return carried(name)(batch, observation).repeat_interleave(topk)

    return live


def swa_locations(batch: ForwardBatch, observation: Observation) -> Tensor:
    """Return the SWA slots of the batch's locations, by the eager world's mapping."""
    return observation.eager.mapping[batch.out_cache_loc]


def payload(batch: ForwardBatch, observation: Observation) -> Tensor:
    """Return the tensor that the target adds to the embeddings of the batch's tokens."""
    assert observation.payload is not None
    return observation.payload


def counts_on_host(batch: ForwardBatch, observation: Observation) -> Tensor:
    """Return the number of tokens per request."""
    return torch.tensor([span.end - span.begin for span in batch.spans], dtype=torch.int32)


def rows_of(
    per_bucket: int, fills: Mapping[str, int | None], *, per_branch: bool = False
) -> dict[str, Expected]:
    """Return rows for tensors of the batch, by name, with the fill values of their tails."""
    return {
        name: Expected(per_bucket, fill, carried(name), per_branch=per_branch)
        for name, fill in fills.items()
    }


def decode_rows(tokens: int) -> dict[str, Expected]:
    """Return the rows of the decode runner or, with more tokens per request, the verify runner."""
    rows = {
        **rows_of(tokens, {"input_ids": None, "positions": 0, "out_cache_loc": 0}),
        **rows_of(
            1,
            {
                "req_pool_indices": 0,
                "seq_lens": 1,
                "seq_lens_cpu": 1,
                "mamba_track_indices": 0,
                "mamba_track_mask": 0,
                "encoder_lens": None,
            },
        ),
        "out_cache_loc_swa": Expected(tokens, 0, swa_locations, swa=True),
    }
    return rows | mrope(tokens, None)


def mrope(per_bucket: int, fill: int | None, *, per_branch: bool = False) -> dict[str, Expected]:
    """Return the row of the multimodal positions."""
    live = carried("mrope_positions")
    row = Expected(per_bucket, fill, live, wide=True, per_branch=per_branch)
    return {"mrope_positions": row}


DRAFT_STATE = ("topk_p", "topk_index", "hidden_states")

PREFILL = ExpectedInputs(
    {
        **rows_of(1, {"out_cache_loc": 0, "input_ids": 0, "positions": 0}),
        **mrope(1, 0),
        "out_cache_loc_swa": Expected(1, 0, swa_locations, swa=True),
        "input_embeds": Expected(1, 0, payload),
        **rows_of(0, {"mamba_track_indices": None, "mamba_track_mask": None}),
    }
)

INPUTS: Mapping[str, ExpectedInputs] = {
    "decode": ExpectedInputs(decode_rows(1), bucket_tokens=1),
    "target_verify": ExpectedInputs(
        {**decode_rows(K), **rows_of(0, {"custom_mask": None})}, bucket_tokens=K
    ),
    "cpu_graph": ExpectedInputs(
        {
            **rows_of(
                1,
                {
                    "input_ids": None,
                    "positions": None,
                    "seq_lens": 1,
                    "out_cache_loc": 0,
                    "req_pool_indices": 0,
                },
            ),
            **mrope(1, None),
        },
        only_padded=True,
        dtypes={"seq_lens": torch.int64},
    ),
    "eagle_draft": ExpectedInputs(
        {
            **rows_of(1, {"seq_lens": 1, "seq_lens_cpu": 1, "req_pool_indices": 0}),
            **rows_of(1, dict.fromkeys(DRAFT_STATE, 0)),
            **rows_of(1, {"positions": 0}, per_branch=True),
            **rows_of(SPECULATION.steps, {"out_cache_loc": 0}, per_branch=True),
            "input_ids": Expected(1, None, None, per_branch=True),
            "mrope_positions": Expected(1, None, None, wide=True, per_branch=True),
            "extend_seq_lens": Expected(1, None, None),
        }
    ),
    "eagle_draft_extend": ExpectedInputs(
        {
            **rows_of(1, {"seq_lens": 1, "seq_lens_cpu": 1, "req_pool_indices": 0}),
            **rows_of(ACCEPTED, {"out_cache_loc": 0, "positions": 0}),
            **rows_of(ACCEPTED, {"input_ids": None, "hidden_states": None}),
            **rows_of(
                1,
                dict.fromkeys(
                    ("num_correct_drafts", "num_accept_tokens", "extend_seq_lens"), ACCEPTED
                ),
            ),
            "extend_seq_lens_cpu": Expected(1, ACCEPTED, counts_on_host),
        }
    ),
    "frozen_kv_mtp": ExpectedInputs(
        {
            **{
                name: Expected(1, fill, per_branch(name), per_branch=True)
                for name, fill in {"seq_lens": 1, "seq_lens_cpu": 1, "req_pool_indices": 0}.items()
            },
            **rows_of(1, {"positions": 0}, per_branch=True),
            **rows_of(1, dict.fromkeys(DRAFT_STATE)),
            **mrope(1, None, per_branch=True),
        }
    ),
    "piecewise": PREFILL,
    "breakable": PREFILL,
}
"""The expected static inputs of each runner. A new runner needs an entry."""

METADATA: Mapping[str, torch.dtype] = {
    **dict.fromkeys(("kv_indptr", "window_kv_indptr", "swa_page_table"), torch.int32),
    **dict.fromkeys(("key_begin", "key_end", "window_key_begin", "window_key_end"), torch.int32),
    **dict.fromkeys(("kv_indices", "window_kv_indices", "window_kv_offsets"), torch.int64),
    **dict.fromkeys(("mask_indptr", "tree_parents"), torch.int64),
}
"""The dtypes of static buffers for key lists. Their content is checked by read_frame."""


@dataclass(frozen=True)
class Room:
    """The required size of a static buffer, which no batch of tiny pools fills.

    A bucket of size 1 needs `elements` plus `contexts` longest contexts plus `windows` windows, for
    each branch of a draft if `per_branch`. `once` elements are needed in addition for any bucket.
    """

    elements: int = 0
    contexts: int = 0
    windows: int = 0
    once: int = 0
    per_branch: bool = False

    def of(self, config: ModelConfig, bucket: int) -> int:
        """Return the elements that a bucket needs."""
        keys = self.contexts * config.max_context + self.windows * config.window
        topk = config.speculation.topk if self.per_branch else 1
        return bucket * topk * (self.elements + keys) + self.once


def room_of_rows(rows: int, *, per_branch: bool = False) -> dict[str, Room]:
    """Return the sizes of key lists with a number of rows in a bucket of size 1."""
    ends = Room(elements=rows, once=1, per_branch=per_branch)
    return {
        **dict.fromkeys(("kv_indptr", "window_kv_indptr"), ends),
        "kv_indices": Room(contexts=rows, per_branch=per_branch),
        "window_kv_indices": Room(windows=rows, per_branch=per_branch),
    }


def room_of_tokens(tokens: int) -> dict[str, Room]:
    """Return the sizes of the bounds of keys for a number of tokens per request."""
    ends = ("key_begin", "key_end", "window_key_begin", "window_key_end")
    return {**dict.fromkeys(ends, Room(elements=tokens)), "kv_indices": Room(contexts=1)}


ROOM: Mapping[str, Mapping[str, Room]] = {
    "decode": room_of_rows(1),
    "target_verify": {
        **room_of_tokens(K),
        "custom_mask": Room(contexts=K),
        "swa_page_table": Room(elements=K - 1, windows=1),
        "window_kv_offsets": Room(elements=1),
        **dict.fromkeys(("mask_indptr", "tree_parents"), Room(elements=K)),
    },
    "eagle_draft": room_of_rows(SPECULATION.forwards, per_branch=True),
    "eagle_draft_extend": {
        **room_of_tokens(ACCEPTED),
        "window_kv_indices": Room(elements=ACCEPTED - 1, windows=1),
    },
    "frozen_kv_mtp": room_of_rows(1, per_branch=True),
}
"""The required sizes of buffers for key lists and masks, by runner."""

OUTPUTS = "attention_output_"
"""The prefix of static buffers that attention writes. They are not inputs."""
