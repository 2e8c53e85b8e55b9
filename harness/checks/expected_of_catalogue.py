"""Expectations for bugs of other engines, in padding and in the sliding window."""

from paritybit.harness.checks.expected import (
    DECODE,
    DRAFT,
    DRAFT_EXTEND,
    FROZEN,
    PREFILL,
    VERIFY,
    Row,
    seen,
)

# All keys that a padded row reads are slot 0's. Without attention sinks it gets their value
# whatever its position, so that what positions hold is seen in the input alone.
STALE_INPUTS: dict[str, Row] = {
    "verify_positions_pad": seen("live_inputs", DECODE, VERIFY),
    "extend_positions_pad": seen("live_inputs", DRAFT_EXTEND),
    "extend_counts_pad": seen("hermetic_replay", DRAFT_EXTEND),
    "dummy_run_indptr_pad": seen("hermetic_replay", DECODE, FROZEN),
    "cleared_after_deriving": seen("kv_parity", DECODE, VERIFY),
    "request_table_unwritten": seen("read_frame", DECODE),
}

PADDING_MATHS: dict[str, Row] = {
    "masked_values_loaded": seen("padding_noninterference", VERIFY),
    "store_counts_padded_keys": seen("kv_parity", PREFILL),
    "padding_clamped_to_a_slot": seen("write_frame", DECODE),
    "state_slot_zero_issued": seen("slot_ownership", DECODE),
    "prompt_taken_for_decode": seen("logits_parity", DECODE),
}

WINDOW: dict[str, Row] = {
    "window_one_short": seen("dense_agreement", DECODE),
    "window_inclusive": seen("dense_agreement", PREFILL),
    "evicts_by_chunk": seen("kv_parity", PREFILL),
    "mapping_of_evicted_slots": seen("slot_ownership", PREFILL),
}

BRANCHES: dict[str, Row] = {
    "draft_lists_of_one_branch": seen("live_inputs", DRAFT, FROZEN),
    "chain_lists_not_rebuilt": seen("logits_parity", DRAFT),
}

DUMMIES: dict[str, Row] = {
    "dummy_drafts_kv": seen("write_frame", DRAFT),
    "dummy_slots_unmasked": seen("write_frame", VERIFY),
    "padded_tokens_advance_states": seen("kv_parity", PREFILL),
}

CATALOGUE: dict[str, Row] = {
    **STALE_INPUTS,
    **PADDING_MATHS,
    **WINDOW,
    **DUMMIES,
    **BRANCHES,
}
"""The rows of the public catalogue, by the name of the bug."""
