"""What tests expect of a runner's static inputs: one row per runner, and the pieces rows share.

Written a second time on purpose, from the engine's runners and by hand, not from the contracts
of ours: a slip there shows as a difference from here. Never derive a row from the runner that it
is held against.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from paritybit.reference.batch import Mode
from paritybit.subjects.contracts import HIDDEN, Axis
from paritybit.subjects.contracts import TOPK as BRANCHES
from paritybit.subjects.toggles import LocationScheme

from properties.support.subjects.static_inputs import ExpectedInput

T, B, M = Axis.TOKEN, Axis.REQUEST, Axis.MROPE
I64, I32, F32, BOOL = torch.int64, torch.int32, torch.float32, torch.bool
MODEL = None
"""The dtype of what has the model's."""

K, TOPK, STEPS, MASK_BITS = 4, 2, 3, 4 * 48
"""Draft tokens of a verify, and of a draft-extend; branches and steps of a draft; mask bits."""

PRESET = LocationScheme.PRESET


@dataclass(frozen=True)
class ExpectedRunner:
    """What is expected of one runner.

    `inputs` are its static inputs, and what is right in the padded part of each.
    `per_bucket` says how long each axis is for each unit of a bucket; `fixed` for any bucket.
    """

    mode: Mode
    inputs: Mapping[str, ExpectedInput]
    per_bucket: Mapping[Axis, int]
    fixed: Mapping[Axis, int] = field(default_factory=dict)

    def inputs_under(self, scheme: LocationScheme) -> dict[str, ExpectedInput]:
        """Return the static inputs that exist under a location scheme."""
        return {name: row for name, row in self.inputs.items() if row.scheme in {None, scheme}}

    def extents(self, bucket: int) -> dict[Axis, int]:
        """Return how long each axis is for a bucket."""
        return {axis: bucket * count for axis, count in self.per_bucket.items()} | {**self.fixed}


SEQ_LENS = ExpectedInput(B, I32, 1, 1)
SEQ_LENS_CPU = ExpectedInput(B, I32, 1, 1, host=True)
SWA_LOC_INPUT = ExpectedInput(T, I32, 0, scheme=PRESET)

DECODE_INPUTS = {
    "input_ids": ExpectedInput(T, I64),
    "positions": ExpectedInput(T, I64, 0),
    "req_pool_indices": ExpectedInput(B, I64, 0),
    "seq_lens": SEQ_LENS,
    "seq_lens_cpu": SEQ_LENS_CPU,
    "out_cache_loc": ExpectedInput(T, I64, 0),
    "out_cache_loc_swa": SWA_LOC_INPUT,
    "mrope_positions": ExpectedInput(M, I64),
    "mamba_track_indices": ExpectedInput(B, I64, 0),
    "mamba_track_mask": ExpectedInput(B, BOOL, 0),
    "encoder_lens": ExpectedInput(B, I32),
    "num_token_non_padded": ExpectedInput(Axis.SCALAR, I32),
    "global_num_tokens": ExpectedInput(Axis.SCALAR, I32),
}

PREFILL_INPUTS = {
    "out_cache_loc": ExpectedInput(T, I64, 0),
    "out_cache_loc_swa": SWA_LOC_INPUT,
    "input_ids": ExpectedInput(T, I64, 0),
    "positions": ExpectedInput(T, I64, 0),
    "mrope_positions": ExpectedInput(M, I64, 0),
    "input_embeds": ExpectedInput(T, F32, 0, width=HIDDEN),
    "mamba_track_indices": ExpectedInput(B, I64),
    "mamba_track_mask": ExpectedInput(B, BOOL),
}

DECODE = ExpectedRunner(
    mode=Mode.DECODE,
    inputs=DECODE_INPUTS,
    per_bucket={T: 1, B: 1},
)

PIECEWISE = ExpectedRunner(
    mode=Mode.EXTEND,
    inputs=PREFILL_INPUTS,
    per_bucket={T: 1},
    fixed={B: 8},
)

EXPECTED: Mapping[str, ExpectedRunner] = {
    "decode": DECODE,
    "target_verify": replace(
        DECODE,
        mode=Mode.TARGET_VERIFY,
        inputs={**DECODE_INPUTS, "custom_mask": ExpectedInput(Axis.MASK, BOOL)},
        per_bucket={T: K, B: 1, Axis.MASK: MASK_BITS},
    ),
    "cpu_graph": ExpectedRunner(
        mode=Mode.DECODE,
        inputs={
            "seq_lens": ExpectedInput(B, I64, 1, 1),
            "out_cache_loc": ExpectedInput(T, I64, 0),
            "req_pool_indices": ExpectedInput(B, I64, 0),
            "input_ids": ExpectedInput(T, I64),
            "positions": ExpectedInput(T, I64),
            "mrope_positions": ExpectedInput(M, I64),
        },
        per_bucket={T: 1, B: 1},
    ),
    "eagle_draft": ExpectedRunner(
        mode=Mode.DRAFT,
        inputs={
            "seq_lens": SEQ_LENS,
            "seq_lens_cpu": SEQ_LENS_CPU,
            "out_cache_loc": ExpectedInput(Axis.DRAFT_SLOT, I64, 0),
            "positions": ExpectedInput(T, I64, 0),
            "topk_p": ExpectedInput(B, F32, 0, width=BRANCHES),
            "topk_index": ExpectedInput(B, I64, 0, width=BRANCHES),
            "hidden_states": ExpectedInput(B, MODEL, 0, width=HIDDEN),
            "req_pool_indices": ExpectedInput(B, I64, 0),
            "input_ids": ExpectedInput(T, I64, populated=False),
            "mrope_positions": ExpectedInput(M, I64, populated=False),
            "extend_seq_lens": ExpectedInput(B, I32, populated=False),
        },
        per_bucket={T: TOPK, B: 1, Axis.DRAFT_SLOT: TOPK * STEPS},
    ),
    "eagle_draft_extend": ExpectedRunner(
        mode=Mode.DRAFT_EXTEND,
        inputs={
            "seq_lens": SEQ_LENS,
            "out_cache_loc": ExpectedInput(T, I64, 0, new=1),
            "positions": ExpectedInput(T, I64, 0),
            "req_pool_indices": ExpectedInput(B, I64, 0),
            "num_correct_drafts": ExpectedInput(B, I32, K, K),
            "num_accept_tokens": ExpectedInput(B, I32, K, K),
            "extend_seq_lens": ExpectedInput(B, I32, K, K),
            "input_ids": ExpectedInput(T, I64),
            "hidden_states": ExpectedInput(T, MODEL, width=HIDDEN),
            "seq_lens_cpu": SEQ_LENS_CPU,
            "extend_seq_lens_cpu": ExpectedInput(B, I32, K, K, host=True),
        },
        per_bucket={T: K, B: 1},
    ),
    "frozen_kv_mtp": ExpectedRunner(
        mode=Mode.FROZEN_DRAFT,
        inputs={
            "seq_lens": ExpectedInput(T, I32, 1, 1),
            "seq_lens_cpu": ExpectedInput(T, I32, 1, 1, host=True),
            "positions": ExpectedInput(T, I64, 0),
            "req_pool_indices": ExpectedInput(T, I64, 0),
            "topk_p": ExpectedInput(B, F32, width=BRANCHES),
            "topk_index": ExpectedInput(B, I64, width=BRANCHES),
            "hidden_states": ExpectedInput(B, MODEL, width=HIDDEN),
            "mrope_positions": ExpectedInput(M, I64),
        },
        per_bucket={T: TOPK, B: 1},
    ),
    "piecewise": PIECEWISE,
    "breakable": PIECEWISE,
}
"""The row of every runner, by its name."""
