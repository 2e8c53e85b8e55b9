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
    "draft_positions_pad": seen("live_inputs", DRAFT),
    "extend_positions_pad": seen("live_inputs", DRAFT_EXTEND),
    "extend_seq_lens_pad": seen("hermetic_replay", DRAFT_EXTEND),
    "extend_locations_pad": seen("kv_parity", DRAFT_EXTEND),
    "extend_accepted_pad": seen("hermetic_replay", DRAFT_EXTEND),
    "extend_drafts_pad": seen("hermetic_replay", DRAFT_EXTEND),
    "extend_counts_pad": seen("hermetic_replay", DRAFT_EXTEND),
    "draft_state_pad": seen("hermetic_replay", DRAFT),
    "block_table_pad": seen("kv_parity", DECODE, VERIFY),
    "dummy_run_indptr_pad": seen("hermetic_replay", DECODE, FROZEN),
    "optional_input_absent": seen("logits_parity", DECODE, VERIFY),
    "cleared_after_deriving": seen("kv_parity", DECODE, VERIFY),
    "metadata_of_live_rows": seen("hermetic_replay", DECODE, FROZEN),
    "sum_excludes_padding": seen("hermetic_replay", DECODE, VERIFY),
    "count_of_capture": seen("live_inputs", DECODE, VERIFY),
    "request_table_unwritten": seen("read_frame", DECODE),
}

PADDING_MATHS: dict[str, Row] = {
    "masked_values_loaded": seen("padding_noninterference", VERIFY),
    "store_counts_padded_keys": seen("kv_parity", PREFILL),
    "skipped_rows_unwritten": seen("hermetic_replay", DECODE, VERIFY),
    "empty_padded_row": seen("logits_parity", DECODE),
    "padding_clamped_to_a_slot": seen("write_frame", DECODE),
    "state_slot_zero_issued": seen("slot_ownership", DECODE),
    "prompt_taken_for_decode": seen("logits_parity", DECODE),
}

WINDOW: dict[str, Row] = {
    "window_one_short": seen("dense_agreement", DECODE),
    "window_inclusive": seen("dense_agreement", PREFILL),
    "merge_beyond_window": seen("logits_parity", DECODE),
    "window_lists_missing": seen("logits_parity", DRAFT_EXTEND),
    "evicts_by_chunk": seen("kv_parity", PREFILL),
    "mapping_of_freed_slots": seen("slot_ownership", DECODE),
    "mapping_of_evicted_slots": seen("slot_ownership", PREFILL),
}

BRANCHES: dict[str, Row] = {
    "draft_lists_of_one_branch": seen("live_inputs", DRAFT, FROZEN),
    "tree_states_as_chain": seen("logits_parity", VERIFY),
    "chain_lists_not_rebuilt": seen("logits_parity", DRAFT),
    "chain_sum_excludes_padding": seen("hermetic_replay", DRAFT),
}

DUMMIES: dict[str, Row] = {
    "dummy_advances_states": seen("write_frame", DECODE, VERIFY),
    "dummy_drafts_kv": seen("write_frame", DRAFT),
    "dummy_slots_unmasked": seen("write_frame", VERIFY),
    "padded_tokens_advance_states": seen("kv_parity", PREFILL),
}

RECAPTURED: dict[str, Row] = {
    "output_view_kept": seen("live_inputs", DECODE),
}

CATALOGUE: dict[str, Row] = {
    **STALE_INPUTS,
    **PADDING_MATHS,
    **WINDOW,
    **DUMMIES,
    **RECAPTURED,
    **BRANCHES,
}
"""The rows of the public catalogue, by the name of the bug."""
