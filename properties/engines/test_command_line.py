"""Asking for an engine: what is malformed, what cannot be had, what cannot be decided."""

from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.cli.engine_display import changes
from harness.engines import fetch as engines
from harness.engines import record as engine_record
from harness.engines.faults import Verdict
from harness.lockstep.config import CannotRunError, UnknownNameError
from properties.support.harness.command_line import CANNOT_RUN, MALFORMED


@pytest.mark.parametrize("spec", ["sglang", "sglang==x", "/nowhere", "."])
def test_what_is_no_engine_is_a_malformed_command_line(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["regress", "--engine", spec]) == MALFORMED
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("ERROR: no version (from versions: 0.5.11, 0.5.12)", ValueError),
        ("ERROR: no version (from versions: none)", CannotRunError),
        ("", CannotRunError),
    ],
)
def test_a_release_that_does_not_exist_is_told_from_an_index_that_does_not_answer(
    said: str,
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(engines.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(engines, "_pip", lambda *arguments: said)
    with pytest.raises(error, match=r"0\.0\.0"):
        engines.find("sglang==0.0.0")


def test_releases_that_lie_here_are_listed_in_order_of_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(engines.FOLDER_VARIABLE, str(tmp_path))
    for version in ("0.5.11", "0.5.9", "0.5.10.post1", "0.5.10"):
        (tmp_path / f"sglang-{version}").mkdir()
    assert engines.fetched() == ["0.5.9", "0.5.10", "0.5.10.post1", "0.5.11"]


def test_an_engine_that_cannot_be_imported_is_skipped_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    code = main(["regress", "--engine", str(tmp_path), "--out", str(tmp_path / "out")])
    assert code == CANNOT_RUN
    error = capsys.readouterr().err
    assert "cannot be tried here" in error
    assert error.count("\n") == 1


def test_a_bug_that_behaviour_does_not_tell_cannot_be_decided() -> None:
    with pytest.raises(CannotRunError, match="swa_pad"):
        engine_record.faults_of(["loc_memo_warning"])
    with pytest.raises(UnknownNameError):
        engine_record.faults_of(["no_bug"])
    with pytest.raises(UnknownNameError):
        engine_record.faults_of(["swa_pad@no_runner"])
    assert engine_record.faults_of(["swa_pad@decode"]) == [("swa_pad", "decode")]


def answer(**verdicts: str) -> dict[str, Any]:
    """Return an answer with verdicts on the decode runner."""
    seen = {"observations": 3, "message": "seen"}
    return {
        "faults": [
            {"fault": fault, "runner": "decode", "verdict": verdict, **seen}
            for fault, verdict in verdicts.items()
        ]
    }


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["swa_pad"], Verdict.ABSENT),
        (["req_pool_pad"], Verdict.PRESENT),
        (["swa_pad", "req_pool_pad"], Verdict.PRESENT),
        (["swa_int64"], Verdict.UNDECIDED),
        (["swa_pad@cpu_graph"], Verdict.UNDECIDED),
        ([], Verdict.PRESENT),
    ],
)
def test_the_verdict_is_of_the_fault_asked_about(asked: list[str], expected: Verdict) -> None:
    found = answer(swa_pad="absent", req_pool_pad="present")
    assert engine_record.judge(found, engine_record.faults_of(asked)) == expected


def test_a_walk_says_where_a_fault_appears_and_where_it_is_gone() -> None:
    verdicts = ("absent", "present", "undecided", "absent")
    walked = [
        (str(place), {"answer": answer(swa_pad=verdict)}) for place, verdict in enumerate(verdicts)
    ]
    assert changes(walked) == [
        "swa_pad on decode: appears in 1, after 0",
        "swa_pad on decode: is gone in 3, after 1",
    ]
