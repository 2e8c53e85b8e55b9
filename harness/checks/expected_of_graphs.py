"""Expectations for bugs of other engines, in indices, captured state and caches."""

from paritybit.harness.checks.expected import (
    COMPILED,
    DECODE,
    DRAFT_EXTEND,
    PREFILL,
    VERIFY,
    Row,
    seen,
)

INDICES: dict[str, Row] = {
    "window_indices_width": seen("logits_parity", DECODE),
    "page_offset_int32": seen("logits_parity", DECODE),
    "token_offset_int32": seen("logits_parity", PREFILL),
    "draft_store_int32": seen("kv_parity", DRAFT_EXTEND),
    "quantised_keys_int32": seen("kv_parity", VERIFY),
    "page_store_int32": seen("kv_parity", DECODE, COMPILED),
}

CAPTURED_STATE: dict[str, Row] = {
    "longest_key_count_baked": seen("logits_parity", DECODE),
    "block_table_rebound": seen("index_contract", DECODE),
    "counts_recreated": seen("logits_parity", DECODE, VERIFY),
    "prefill_kernel_captured": seen("logits_parity", VERIFY),
    "query_layout_uniform": seen("logits_parity", DRAFT_EXTEND),
    "window_metadata_absent": seen("logits_parity", DECODE),
    "kernel_not_recorded": seen("logits_parity", DECODE),
    "workspace_regrown_by_capture": seen("logits_parity", DECODE, VERIFY),
    "workspace_resized_by_eager": seen("logits_parity", DECODE),
    "workspace_freed_with_graph": seen("logits_parity", DECODE),
}

CACHES: dict[str, Row] = {
    "scalar_evicted": seen("logits_parity", PREFILL),
    "plan_by_host_address": seen("logits_parity", DECODE),
    "descriptor_by_address": seen("logits_parity", PREFILL),
}

GRAPHS: dict[str, Row] = {**INDICES, **CAPTURED_STATE, **CACHES}
"""The rows of these families, by the name of the bug."""
