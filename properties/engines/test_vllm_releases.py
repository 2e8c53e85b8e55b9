"""What trials say of vLLM: a release that stored by stale slots, that line mended, the newest."""

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.engines.faults import Verdict

from properties.engines.mutated_vllm import MUTATIONS, OF_VERIFY, OWN
from properties.support.releases import package_of, told_of

SCRIPT = "properties.engines.mutated_vllm"
BROKE, NEWEST = "0.17.0", "0.33.0"

PADS_FROM = "        for i in range(num_tokens, max_num_tokens, TRITON_BLOCK_SIZE):"
MENDED = PADS_FROM.replace("num_tokens,", "tl.load(query_start_loc + batch_idx),", 1)
"""The line that fills the slots' tail from the padded count of tokens on, and as it is right."""

SEEN_BY = {
    "leave_slots": {"live_inputs", "write_frame", "kv_parity"},
    "slots_of_the_null_block": {"live_inputs"},
    "leave_starts": {"live_inputs"},
    "keep_freed_blocks": {"live_inputs"},
    "read_a_copy": {"logits_parity", "kv_parity"},
    "keep_old_weights": {"logits_parity", "kv_parity"},
}
"""The properties that must see each public fault; padded rows run no query, so that three of
them change no output."""


FURTHER_SEEN_BY = {
    "leak_a_block": {"slot_ownership"},
    "free_a_held_block": {"slot_ownership"},
    "free_the_window": {"captured_path"},
    "leave_lengths": {"live_inputs"},
    "read_one_key_more": {"logits_parity"},
    "unmark_padding": {"live_inputs"},
    "rebind_lengths": {"index_contract"},
    "narrow_positions": {"index_contract"},
    "leave_rows": {"live_inputs"},
    "forget_rejections": {"kv_parity", "write_frame"},
    "verify_another_draft": {"live_inputs", "logits_parity"},
}
"""The properties that must see each fault that nobody has reported."""


@cache
def newest() -> Any:
    """Return what the newest release shows, as it is and with each fault planted."""
    return told_of(SCRIPT, package_of(NEWEST, "vllm"), "none", *MUTATIONS, *OWN, *OF_VERIFY)


def test_the_newest_release_is_clean() -> None:
    shown = newest()["none"]
    assert shown["violated"] == {}
    assert shown["faults"]["slot_tail"] == Verdict.ABSENT
    assert shown["padded"] > 2


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_public_fault_that_is_planted_in_the_newest_release_is_caught(mutation: str) -> None:
    assert SEEN_BY[mutation] <= set(newest()[mutation]["violated"])


@pytest.mark.parametrize("mutation", [*OWN, *OF_VERIFY])
def test_a_further_fault_that_is_planted_in_the_newest_release_is_caught(mutation: str) -> None:
    assert FURTHER_SEEN_BY[mutation] <= set(newest()[mutation]["violated"])


def test_the_release_that_stored_by_stale_slots_is_caught_and_explained() -> None:
    shown = told_of(SCRIPT, package_of(BROKE, "vllm"), "none")["none"]
    assert shown["faults"]["slot_tail"] == Verdict.PRESENT
    assert SEEN_BY["leave_slots"] <= set(shown["violated"])
    assert 0 < min(shown["shrunk"].values()) <= max(shown["shrunk"].values()) <= 6
    told = [" ".join(proof) for proof in shown["proofs"]]
    assert all("slot_mapping." in one and "it was left there by step" in one for one in told)
    assert all("full slot" in one and "be of request" in one for one in told)


def test_with_that_line_mended_the_same_tree_is_clean(tmp_path: Path) -> None:
    package = tmp_path / "tree" / "vllm"
    shutil.copytree(package_of(BROKE, "vllm"), package)
    source = package / "v1/worker/gpu/block_table.py"
    text = source.read_text()
    assert text.count(PADS_FROM) == 1
    source.write_text(text.replace(PADS_FROM, MENDED))
    shown = told_of(SCRIPT, package, "none")["none"]
    assert shown["violated"] == {}
    assert shown["faults"]["slot_tail"] == Verdict.ABSENT
