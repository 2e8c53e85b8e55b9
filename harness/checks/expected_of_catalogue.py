"""What is expected of the bugs that other engines had, in padding and in the sliding window."""

from harness.checks.expected import (
    DECODE,
    DRAFT,
    DRAFT_EXTEND,
    FROZEN,
    VERIFY,
    Row,
    seen,
)

STALE_INPUTS: dict[str, Row] = {
    "verify_positions_pad": seen("hermetic_replay", DECODE, VERIFY),
    "draft_positions_pad": seen("hermetic_replay", DRAFT),
    "extend_positions_pad": seen("hermetic_replay", DRAFT_EXTEND),
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
}

CATALOGUE: dict[str, Row] = STALE_INPUTS
"""The rows of the public catalogue, by the name of the bug."""
