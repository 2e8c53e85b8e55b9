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
    "page_store_int32": seen("kv_parity", DECODE, COMPILED),
}

CAPTURED_STATE: dict[str, Row] = {
    "longest_key_count_baked": seen("logits_parity", DECODE),
    "block_table_rebound": seen("index_contract", DECODE),
    "query_layout_uniform": seen("logits_parity", DRAFT_EXTEND),
    "kernel_not_recorded": seen("logits_parity", DECODE),
    "workspace_regrown_by_capture": seen("logits_parity", DECODE, VERIFY),
}

CACHES: dict[str, Row] = {
    "scalar_evicted": seen("logits_parity", PREFILL),
    "plan_by_host_address": seen("logits_parity", DECODE),
}

GRAPHS: dict[str, Row] = {**INDICES, **CAPTURED_STATE, **CACHES}
"""The rows of these families, by the name of the bug."""
