"""The required content of each runner's static inputs: the live part, and the tail if it is reset.

The fill values are independent of the contracts in `subjects/`, on purpose, so that a wrong policy
in a contract is detected.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from paritybit.harness.lockstep.observation import Observation
from paritybit.reference.batch import ForwardBatch, Mode
from paritybit.reference.config import DRAFT_FORWARDS, DRAFT_STEPS, DRAFT_TOKENS, ModelConfig
from paritybit.subjects.contracts import Axis, ContractRow
from paritybit.subjects.runners import RUNNERS
from torch import Tensor

FillValues = Mapping[str, int | None]
"""The value of each static input in padded rows, by name. None if padding keeps the old values."""

LENGTHS: FillValues = {"seq_lens": 1, "seq_lens_cpu": 1, "req_pool_indices": 0}
DRAFT_STATE = ("topk_p", "topk_index", "hidden_states")

DECODE: FillValues = {
    **LENGTHS,
    "input_ids": None,
    "positions": 0,
    "out_cache_loc": 0,
    "out_cache_loc_swa": 0,
    "mamba_track_indices": 0,
}
PREFILL: FillValues = {
    "input_ids": 0,
    "positions": 0,
    "out_cache_loc": 0,
    "out_cache_loc_swa": 0,
    "input_embeds": 0,
    "mamba_track_indices": None,
}
FILLS: Mapping[str, FillValues] = {
    "decode": DECODE,
    "target_verify": DECODE,
    "cpu_graph": {
        "input_ids": None,
        "positions": None,
        "seq_lens": 1,
        "out_cache_loc": 0,
        "req_pool_indices": 0,
    },
    "eagle_draft": {
        **LENGTHS,
        **dict.fromkeys((*DRAFT_STATE, "positions", "out_cache_loc"), 0),
    },
    "eagle_draft_extend": {
        **LENGTHS,
        "positions": 0,
        "out_cache_loc": 0,
        "input_ids": None,
        "hidden_states": None,
        "num_correct_drafts": DRAFT_TOKENS,
        "num_accept_tokens": DRAFT_TOKENS,
        "extend_seq_lens": DRAFT_TOKENS,
        "extend_seq_lens_cpu": DRAFT_TOKENS,
    },
    "frozen_kv_mtp": {
        **LENGTHS,
        "positions": 0,
        **dict.fromkeys(DRAFT_STATE),
    },
    "piecewise": PREFILL,
    "breakable": PREFILL,
}
"""The static inputs of each runner. A new runner needs an entry."""

TOKEN_COUNTS = ("num_token_non_padded", "global_num_tokens")
"""Further inputs of the runners that decode and verify: live tokens, and tokens of the bucket."""

CONVERTED: Mapping[str, torch.dtype] = dict.fromkeys(("seq_lens", "seq_lens_cpu"), torch.int32)
"""The dtypes of the static inputs whose copy from the batch converts, by name.

If such an input had the batch's dtype in all runners, no copy would convert and no two runners
would disagree, so only this table can detect it.
"""

COMPILED: Mapping[str, torch.dtype] = {"seq_lens": torch.int64}
"""The same for a runner that captures nothing: it converts nothing."""

ENDS = ("key_begin", "key_end", "window_key_begin", "window_key_end")
METADATA: Mapping[str, torch.dtype] = {
    **dict.fromkeys(ENDS, torch.int32),
    **dict.fromkeys(("kv_indices", "window_kv_indices"), torch.int64),
}
"""The dtypes of static buffers for key lists. Their content is checked by read_frame."""

OUTPUTS = "attention_output_"
"""The prefix of static buffers that attention writes. They are not inputs."""


TOKENS_PER_REQUEST = {Mode.TARGET_VERIFY: DRAFT_TOKENS, Mode.DRAFT_EXTEND: DRAFT_TOKENS}
"""The tokens of a bucket per request, by mode. The default is 1."""


def required_room(mode: Mode, bucket: int, config: ModelConfig) -> dict[str, int]:
    """Return how many elements each static buffer for key lists must have for a bucket.

    A batch of small pools never needs all of them, so a buffer that is too small is not written
    beyond its end.
    """
    lists = bucket * (DRAFT_FORWARDS if mode is Mode.DRAFT else 1)
    tokens = TOKENS_PER_REQUEST.get(mode, 1)
    return {
        **dict.fromkeys(ENDS, lists * tokens),
        "kv_indices": lists * config.max_context,
        "window_kv_indices": lists * (config.window - 1 + tokens),
    }


class InputPart(NamedTuple):
    """A part of a static input from element or row `first` on, and its required content."""

    name: str
    live: bool
    first: int
    current: Tensor
    right: Tensor


def parts(observation: Observation) -> Iterator[InputPart]:
    """Yield the parts of a replay's static inputs whose required content is known."""
    replay, static = observation.replay, observation.static
    if replay is None or not (RUNNERS[replay.runner].captures or replay.padded):
        return
    rows = {row.name: row for row in RUNNERS[replay.runner].rows}
    extents, batch = extents_of(observation.mode, replay.bucket), observation.eager.batch
    for name, fill in FILLS[replay.runner].items():
        if name not in static:
            continue
        buffer, end, live = static[name], extents[rows[name].axis], 0
        if batch is not None:
            right = live_part(observation, batch, rows[name])
            live = len(right)
            yield InputPart(name, True, 0, buffer[:live], right)
        if fill is not None and end > live:
            tail = buffer[live:end]
            yield InputPart(name, False, live, tail, torch.full_like(tail, fill))
    counts = 0 if batch is None else batch.live_tokens, extents[Axis.TOKEN]
    for name, count in zip(TOKEN_COUNTS, counts, strict=True):
        if name in static:
            yield InputPart(name, True, 0, static[name], torch.full_like(static[name], count))


def extents_of(mode: Mode, bucket: int) -> dict[Axis, int]:
    """Return the length of each axis of the static inputs for a bucket."""
    return {
        Axis.REQUEST: bucket,
        Axis.TOKEN: bucket * TOKENS_PER_REQUEST.get(mode, 1),
        Axis.DRAFT_SLOT: bucket * DRAFT_STEPS,
    }


def live_part(observation: Observation, batch: ForwardBatch, row: ContractRow) -> Tensor:
    """Return the required live part of a static input, in the batch's dtype."""
    special: Mapping[str, Callable[[], Tensor | None]] = {
        "out_cache_loc_swa": lambda: observation.eager.mapping[batch.out_cache_loc].to(torch.int32),
        "input_embeds": lambda: observation.payload,
        "extend_seq_lens_cpu": lambda: batch.extend_lens_cpu.to(torch.int32),
    }
    values = special.get(row.name, lambda: batch.value(row.name))()
    assert values is not None
    return values
