"""Soaks and bisections of two releases: one that had the faults, and one that is clean of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.engines.case import EngineCase, load_engine_case
from paritybit.harness.engines.explained.record import read
from paritybit.harness.engines.playlist import SHRINKING
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case

from paritybit.__main__ import main
from properties.support.harness.command_line import FINDING, OK
from properties.support.releases import package_of

BROKE, CLEAN = "0.5.11", "0.5.23"


def soaked(folder: Path, version: str) -> tuple[int, dict[str, Any]]:
    """Soak the decode runner of a release; return the exit code and the figures."""
    package_of(version)
    record = folder / "soak.json"
    asked = ["--runner", "decode", "--preset", "gpt_oss", "--steps", "60", "--device", "cpu"]
    code = main(["soak", "--engine", f"sglang=={version}", *asked, "--record", str(record)])
    return code, json.loads(record.read_text())["figures"]


def test_a_soak_of_a_clean_release_plays_its_steps_and_lists_what_is_known(tmp_path: Path) -> None:
    code, found = soaked(tmp_path, CLEAN)
    (row,) = found["runners"]
    assert (code, found["findings"], found["undecided"]) == (OK, [], [])
    assert row["steps"] >= 60
    assert row["padded"] > 0
    assert row["events"]["decode: padded replay"] > 0
    assert [one["property"] for one in found["listed"]] == ["dense_agreement"]


def test_a_soak_of_a_release_with_a_fault_finds_it_and_leaves_a_case_that_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = soaked(tmp_path, BROKE)
    assert code == FINDING
    by_property = {one["property"]: one for one in found["findings"] if one["case"]}
    assert by_property.keys() >= {"kv_parity", "write_frame"}
    assert by_property["write_frame"]["faults"] == ["swa_pad"]
    assert "out_cache_loc_swa is the cause" in by_property["write_frame"]["cause"]
    path = tmp_path / "soak-cases" / Path(by_property["write_frame"]["case"]).name
    assert load_engine_case(path).case.seed == by_property["write_frame"]["seed"] == 0
    capsys.readouterr()
    words = ["bisect", "--case", str(path), "--engine", f"sglang=={BROKE}"]
    assert main(words) == FINDING
    assert "smallest set: out_cache_loc_swa" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("hermetic_replay", "smallest set: req_pool_indices"),
        ("index_contract", "does not come of what they hold"),
    ],
)
def test_a_case_of_a_release_is_bisected_over_what_earlier_replays_left(
    target: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package_of(BROKE)
    path = tmp_path / "case.json"
    case = Case(TrialConfig(), SHRINKING, target, 0, ())
    EngineCase(f"sglang=={BROKE}", case).write(path)
    words = ["bisect", "--case", str(path), "--engine", f"sglang=={BROKE}"]
    assert main(words) == FINDING
    assert said in capsys.readouterr().out


def test_a_case_is_clean_on_the_release_that_mended_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package_of(CLEAN)
    path = tmp_path / "case.json"
    case = Case(TrialConfig(), SHRINKING, "write_frame", 0, ())
    EngineCase(f"sglang=={BROKE}", case).write(path)
    assert main(["bisect", "--case", str(path), "--engine", f"sglang=={CLEAN}"]) == OK
    assert "nothing to explain" in capsys.readouterr().out


def test_the_page_of_a_trial_says_who_left_what_where_and_whose_slot_that_is(
    tmp_path: Path,
) -> None:
    package_of(BROKE)
    asked = ["--runner", "decode", "--preset", "gpt_oss", "--examples", "1", "--device", "cpu"]
    code = main(["regress", "--engine", f"sglang=={BROKE}", *asked, "--out", str(tmp_path)])
    assert code == FINDING
    record = json.loads((tmp_path / "latest" / "engine.json").read_text())
    found = {one.finding.case.target: one.finding for one in read(record)}
    explained = found["write_frame"].explanation
    assert explained is not None and explained.cause.given is not None
    assert explained.cause.given.what.startswith("out_cache_loc_swa[")
    assert explained.cause.given.stale
    left_by = explained.cause.given.left_by
    assert left_by is not None and left_by.step < explained.at.step
    assert explained.cause.slot is not None
    assert explained.cause.slot.owner == f"request {left_by.request}"
    (drawn,) = [one for one in explained.slots if (one.model, one.kind) == ("target", "swa")]
    assert explained.cause.slot.slot in drawn.differs
    page = (tmp_path / "latest" / "index.html").read_text()
    assert all(part in page for part in ("culprit", 'class="slots"', 'class="timeline"'))
