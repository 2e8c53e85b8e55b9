"""What trials say of two releases: one that had the faults, and one that mended the worst."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.engines.case import EngineCase
from paritybit.harness.engines.faults import Verdict
from paritybit.harness.engines.playlist import SHRINKING
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case
from paritybit.reference.config import PRESETS

from paritybit.__main__ import main
from properties.support.harness.command_line import FINDING
from properties.support.releases import package_of, told_by

BROKE, MENDED = "0.5.11", "0.5.12"

MUTATIONS = {
    BROKE: ("none", "heal_swa_pad"),
    MENDED: ("none", "plant_swa_pad", "plant_full_pad", "heal_req_pool_pad", "lose_a_token"),
}
"""What is tried of either release, in one process."""


@cache
def all_shown(version: str) -> Any:
    """Return what one schedule shows of a release that lies here, by mutation of its populate."""
    return told_by("properties.engines.mutated", version, *MUTATIONS[version])


def shown(version: str, mutation: str = "none") -> Any:
    """Return what one schedule shows of a release that lies here, its populate mutated."""
    return all_shown(version)[mutation]


def test_the_release_that_broke_is_detected_and_the_one_that_mended_is_clean() -> None:
    broke, mended = shown(BROKE), shown(MENDED)
    assert broke["faults"]["swa_pad"] == Verdict.PRESENT
    assert {"write_frame", "kv_parity", "index_contract"} <= set(broke["violated"])
    assert mended["faults"]["swa_pad"] == Verdict.ABSENT
    assert mended["violated"] == ["hermetic_replay", "read_frame"]
    assert broke["padded"] > 0 < mended["padded"]


@pytest.mark.parametrize("version", [BROKE, MENDED])
def test_every_violation_of_either_release_is_explained_by_a_fault_class(version: str) -> None:
    assert shown(version)["findings"]
    assert all(finding["faults"] for finding in shown(version)["findings"])


def test_the_cause_of_what_a_release_gets_wrong_is_proved() -> None:
    assert "out_cache_loc_swa is the cause" in shown(BROKE)["causes"]["kv_parity"]
    assert "req_pool_indices is the cause" in shown(MENDED)["causes"]["hermetic_replay"]


def test_a_failing_schedule_of_an_engine_is_shrunk_to_two_requests_that_decode_twice() -> None:
    assert shown(BROKE)["shrunk"]["write_frame"] == 4
    assert shown(BROKE)["shrunk"]["kv_parity"] == 4


def test_what_an_engine_cannot_be_asked_is_said_with_its_reason() -> None:
    unasked = shown(MENDED)["unasked"]
    assert set(unasked) == {
        *("padding_noninterference", "padded_reads", "batch_invariance", "declared_state"),
    }
    assert all(unasked.values())


def test_healing_the_fault_turns_its_verdict_and_no_other() -> None:
    healed = shown(BROKE, "heal_swa_pad")
    assert healed["faults"]["swa_pad"] == Verdict.ABSENT
    assert healed["faults"]["req_pool_pad"] == Verdict.PRESENT
    assert "write_frame" not in healed["violated"]


def test_planting_the_fault_in_the_release_that_mended_it_turns_its_verdict() -> None:
    planted = shown(MENDED, "plant_swa_pad")
    assert planted["faults"]["swa_pad"] == Verdict.PRESENT
    assert planted["padding"]["out_cache_loc_swa"] == "kept, and read"


def unexplained(found: Any) -> set[str]:
    """Return the properties of which no fault class explains the violation."""
    return {one["property"] for one in found["findings"] if not one["faults"]}


def test_a_violation_that_no_fault_class_explains_is_a_finding() -> None:
    planted = shown(MENDED, "plant_full_pad")
    assert "write_frame" in planted["violated"]
    assert planted["faults"]["swa_pad"] == Verdict.ABSENT
    assert unexplained(planted) >= {"write_frame"}


def test_healing_the_stale_rows_turns_that_verdict() -> None:
    assert shown(MENDED)["faults"]["req_pool_pad"] == Verdict.PRESENT
    healed = shown(MENDED, "heal_req_pool_pad")
    assert healed["faults"]["req_pool_pad"] == Verdict.ABSENT
    assert healed["violated"] == []
    assert healed["padding"]["req_pool_indices"] == "reset"


def test_another_token_in_a_live_row_makes_the_worlds_diverge() -> None:
    lost = shown(MENDED, "lose_a_token")
    assert "logits_parity" in lost["violated"]
    assert unexplained(lost) >= {"logits_parity", "live_inputs"}


def test_what_is_kept_is_distinct_names_from_what_is_read() -> None:
    padding = shown(MENDED)["padding"]
    assert padding["input_ids"] == "kept, nobody live reads it"
    assert padding["out_cache_loc"] == "reset"
    assert shown(BROKE)["padding"]["out_cache_loc_swa"] == "kept, and read"


def test_own_kernels_are_off_the_oracle_where_the_fault_is_and_nowhere_else() -> None:
    assert shown(BROKE)["off"]
    assert not shown(MENDED)["off"]


def test_windows_are_measured_by_phase() -> None:
    window = PRESETS["gpt_oss"].tiny.window
    assert shown(MENDED)["windows"] == {"decode": window, "extend": window + 1}
    assert len(shown(MENDED)["listed"]) == 1


def test_prefill_runners_are_distinct_names_by_the_dtype_of_their_locations() -> None:
    assert shown(BROKE)["piecewise"]["swa_int64"] == Verdict.PRESENT
    assert shown(MENDED)["piecewise"]["swa_int64"] == Verdict.ABSENT


def test_a_case_of_an_engine_replays_there_and_shows_what_another_release_has_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.json"
    package_of(MENDED)
    package_of(BROKE)
    case = Case(TrialConfig(), SHRINKING, "write_frame", 0, ())
    EngineCase(f"sglang=={BROKE}", case).write(path)
    assert main(["replay", str(path), "--engine", f"sglang=={BROKE}"]) == FINDING
    assert "write_frame: step 6" in capsys.readouterr().out
    # There padded rows still read what an earlier batch left, which is a finding too.
    assert main(["replay", str(path), "--engine", f"sglang=={MENDED}"]) == FINDING
    said = capsys.readouterr().out
    assert "write_frame" not in said
    assert "read_frame: step 6" in said
