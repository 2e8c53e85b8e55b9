"""Which cause function explains a violation of which property.

A property that stands in no row speaks of more than one forward, and is not explained.
"""

from collections.abc import Mapping

from harness.explain.build_faults import dtype_cause, off_path_cause, warning_site
from harness.explain.cause import CauseFinder, diverged_cause, history_cause

FINDERS: Mapping[str, CauseFinder] = {
    "logits_parity": diverged_cause,
    "kv_parity": diverged_cause,
    "write_frame": diverged_cause,
    "frozen_kv": diverged_cause,
    "hermetic_replay": history_cause,
    "log_hygiene": warning_site,
    "index_contract": dtype_cause,
    "captured_path": off_path_cause,
}
