"""Asking for an engine: what is malformed, what cannot be had, what cannot be decided."""

import hashlib
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.cli.engines.display import changes, fault_table, release_table
from paritybit.harness.engines import fetch as engines
from paritybit.harness.engines import record as engine_record
from paritybit.harness.engines.adapters.packages import DEPENDENCIES
from paritybit.harness.engines.faults import FAULTS, Verdict
from paritybit.harness.errors import CannotRunError, MalformedError, UnknownNameError
from rich.table import Table

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, MALFORMED
from properties.support.places import ROOT


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


def wheel_of(folder: Path, version: str) -> str:
    """Write the wheel of a release of nothing into a folder, and return its hash."""
    path, about = folder / f"sglang-{version}-py3-none-any.whl", f"sglang-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("sglang/srt/__init__.py", "")
        said = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
        wheel.writestr(f"{about}/METADATA", said)
        tags = "Wheel-Version: 1.0\nGenerator: a\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{about}/WHEEL", tags)
        wheel.writestr(f"{about}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.usefixtures("dependencies")
def test_a_release_is_taken_if_its_hash_is_as_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package client itself says so; of a release that is not pinned it is not asked."""
    found = wheel_of(tmp_path, "0.0.1")
    wheel_of(tmp_path, "0.0.2")
    wheel_of(tmp_path, "0.0.3")
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path))):
        monkeypatch.setenv(f"PIP_{name}", value)
    pins = [f"sglang==0.0.{n} \\\n    --hash=sha256:{found}\n" for n in (1, 2)]
    (tmp_path / "pins.txt").write_text("".join(pins))
    monkeypatch.setattr(engines, "RELEASES", tmp_path / "pins.txt")
    assert engines.fetch("0.0.1").package.is_dir()
    with pytest.raises(MalformedError, match=r"hash of sglang==0\.0\.2 .* differs from the pinned"):
        engines.fetch("0.0.2")
    assert engines.fetch("0.0.3").package.is_dir()


def test_what_engines_import_and_all_releases_are_pinned_by_hash() -> None:
    lines = (ROOT / "engine-dependencies.txt").read_text().replace("\\\n", "").splitlines()
    assert all("--hash=sha256:" in line for line in lines if not line.startswith("#"))
    known = re.findall(r"^\| (\d\S*) \|", (ROOT / "reports/evidence/releases.md").read_text(), re.M)
    assert known
    assert [version for version in known if engines.pinned(f"sglang=={version}") is None] == []


def test_releases_that_lie_here_are_listed_in_order_of_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(engines.FOLDER_VARIABLE, str(tmp_path))
    for version in ("0.5.11", "0.5.9", "0.5.10.post1", "0.5.10"):
        (tmp_path / f"sglang-{version}").mkdir()
    assert engines.fetched() == ["0.5.9", "0.5.10", "0.5.10.post1", "0.5.11"]


@pytest.fixture
def dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what engines import be installed, and be nothing."""
    (tmp_path / "kept" / DEPENDENCIES).mkdir(parents=True)
    monkeypatch.setenv(engines.FOLDER_VARIABLE, str(tmp_path / "kept"))


def test_a_source_tree_needs_what_engines_import_as_a_release_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    monkeypatch.setenv(engines.FOLDER_VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(engines, "_pip", lambda *arguments: "no index answers")
    with pytest.raises(
        CannotRunError, match="cannot install the dependencies of the engine: no index answers"
    ):
        engines.find(str(tmp_path))


@pytest.mark.usefixtures("dependencies")
def test_an_engine_whose_parts_have_moved_is_undecided_and_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "python" / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "runner.py").write_text("class CudaGraphRunner: ...\n")
    asked = ["--runner", "decode", "--preset", "gpt_oss", "--out", str(tmp_path / "out")]
    assert main(["regress", "--engine", str(tmp_path), *asked]) == CANNOT_RUN
    said = " ".join(capsys.readouterr().out.split())
    assert "undecided: sglang in" in said
    assert "has none of" in said or "has no module" in said
    assert (tmp_path / "out" / "latest" / "index.html").exists()


@pytest.mark.usefixtures("dependencies")
def test_a_runner_that_an_engine_never_had_is_not_tried_and_leaves_nothing_decided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    asked = ["--runner", "frozen_kv_mtp", "--out", str(tmp_path / "out")]
    assert main(["regress", "--engine", str(tmp_path), *asked]) == CANNOT_RUN
    said = " ".join(capsys.readouterr().out.split())
    assert "frozen_kv_mtp is not available: the engine has nothing called" in said


@pytest.mark.parametrize("wrong", [["--runner", "no_runner"], ["--preset", "no_model"]])
def test_a_runner_or_model_that_no_build_has_is_malformed(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    assert main(["regress", "--engine", str(tmp_path), *wrong]) == MALFORMED
    assert "valid: " in capsys.readouterr().err


def test_a_walk_keeps_its_table_when_a_release_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(engines.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(engines, "_pip", lambda *arguments: "(from versions: 0.5.11)")
    asked = ["--releases", "0.0.0,0.0.1", "--out", str(tmp_path / "out")]
    assert main(["bisect-releases", *asked]) == CANNOT_RUN
    said = capsys.readouterr().out
    assert "the package index has no sglang 0.0.0" in said
    assert "faults by release" in said


@pytest.mark.parametrize("version", ["../x", "0.5.11/../x", "", "0..5", "0.5.", "v0.5", "²"])
def test_a_malformed_version_is_refused_before_any_folder_is_made(
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(engines.FOLDER_VARIABLE, str(tmp_path / "engines"))
    releases = ["--releases", f"0.5.11,{version or '/'}"]
    for words in (
        ["bisect-releases", *releases, "--device", "cpu", "--out", str(tmp_path / "out")],
        ["engine", version],
        ["regress", "--engine", f"sglang=={version}"],
    ):
        assert main(words) == MALFORMED
        assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", ["0.5.11", "0.5.10.post1", "1.0rc1", "0.6.0.dev3"])
def test_a_release_may_be_called_as_indexes_call_them(version: str) -> None:
    engines.require_release(version)


def test_a_bug_that_behaviour_does_not_tell_cannot_be_decided() -> None:
    with pytest.raises(CannotRunError, match="swa_pad"):
        engine_record.faults_of(["loc_memo_warning"])
    with pytest.raises(UnknownNameError):
        engine_record.faults_of(["no_bug"])
    with pytest.raises(UnknownNameError):
        engine_record.faults_of(["swa_pad@no_runner"])
    assert engine_record.faults_of(["swa_pad@decode"]) == [("swa_pad", "decode")]


def leg(runner: str = "decode", replays: int = 5) -> dict[str, Any]:
    """Return a leg that was played."""
    return {"runner": runner, "replays": replays, "padded": replays}


def answer(findings: Sequence[dict[str, Any]] = (), **verdicts: str) -> dict[str, Any]:
    """Return an answer with verdicts on the decode runner; those not named are absent."""
    seen = {"runner": "decode", "observations": 3, "message": "seen"}
    told = {**dict.fromkeys(FAULTS, "absent"), **verdicts}
    return {
        "faults": [{"fault": fault, "verdict": verdict, **seen} for fault, verdict in told.items()],
        "findings": list(findings),
        "undecided": [],
        "legs": [leg()],
        "interrupted": False,
    }


def finding(*faults: str, listed: str | None = None) -> dict[str, Any]:
    """Return a violated property, with the fault classes that explain it."""
    where = {"property": "kv_parity", "runner": "decode", "preset": "mimo", "message": "slot 7"}
    return {**where, "faults": list(faults), "listed": listed, "cause": None}


def open_leg(runner: str) -> list[dict[str, str]]:
    """Return that a runner could not be tried."""
    return [{"leg": runner, "runner": runner, "reason": "a part has moved"}]


FOUND = [finding("req_pool_pad")]


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
    found = answer(FOUND, req_pool_pad="present", swa_int64="undecided")
    assert engine_record.judge(found, engine_record.faults_of(asked)) == expected


@pytest.mark.parametrize("asked", [[], ["swa_pad"], ["swa_pad@decode"]])
def test_what_no_fault_class_explains_is_present_whatever_was_asked(asked: list[str]) -> None:
    found = answer([finding()])
    assert engine_record.judge(found, engine_record.faults_of(asked)) is Verdict.PRESENT
    assert "kv_parity on decode mimo: slot 7" in engine_record.sentence("it", found, ())


def test_a_listed_finding_is_no_verdict() -> None:
    assert engine_record.judge(answer([finding(listed="known")]), ()) is Verdict.ABSENT


def test_a_runner_that_could_not_be_tried_is_undecided_and_named() -> None:
    found = {**answer(), "undecided": open_leg("piecewise")}
    assert engine_record.judge(found, ()) is Verdict.UNDECIDED
    assert engine_record.judge(found, [("swa_pad", None)]) is Verdict.UNDECIDED
    assert engine_record.judge(found, [("swa_pad", "decode")]) is Verdict.ABSENT
    assert "piecewise (a part has moved)" in engine_record.sentence("it", found, ())


def test_a_finding_does_not_hide_what_is_undecided() -> None:
    found = {**answer([finding()]), "undecided": open_leg("piecewise")}
    assert engine_record.judge(found, ()) is Verdict.PRESENT
    assert "piecewise (a part has moved)" in engine_record.sentence("it", found, ())


@pytest.mark.parametrize("changed", [{"legs": []}, {"legs": [leg(replays=0)]}])
def test_an_engine_of_which_nothing_was_replayed_is_undecided(changed: dict[str, Any]) -> None:
    assert engine_record.judge({**answer(), **changed}, ()) is Verdict.UNDECIDED


def test_an_interrupted_trial_is_never_green() -> None:
    assert engine_record.judge({**answer(), "interrupted": True}, ()) is Verdict.UNDECIDED


def test_a_clean_trial_says_what_it_is_about_and_how_much_was_replayed() -> None:
    assert engine_record.judge(answer(), ()) is Verdict.ABSENT
    said = engine_record.sentence("it", answer(), [("swa_pad", None)])
    assert said == "it: no swa_pad in 5 replays (5 padded) on decode"


def test_a_walk_says_where_a_fault_appears_and_where_it_is_gone() -> None:
    verdicts = ("absent", "present", "undecided", "absent")
    walked = [
        (str(place), {"answer": answer(swa_pad=verdict)}) for place, verdict in enumerate(verdicts)
    ]
    assert changes(walked) == [
        "swa_pad on decode: appears in 1, after 0",
        "swa_pad on decode: is gone in 3, after 1",
    ]


def release(*verdicts: str, undecided: Sequence[dict[str, str]] = ()) -> dict[str, Any]:
    """Return a release's record: a verdict on swa_pad by each leg of the decode runner."""
    seen = {"fault": "swa_pad", "runner": "decode", "observations": 3}
    faults = [{**seen, "verdict": verdict, "message": f"{verdict}!"} for verdict in verdicts]
    found = {**answer(), "faults": faults, "undecided": list(undecided)}
    return {"engine": "sglang 1", "faults": {"swa_pad": "a row"}, "answer": found}


def cells_of(table: Table) -> list[str]:
    """Return what the rows of a table show, but the first two columns."""
    return [str(cell) for column in table.columns[2:] for cell in column.cells]


LEGS: dict[str, tuple[tuple[str, ...], Sequence[dict[str, str]], list[str]]] = {
    "one of two shows it": (("absent", "present"), (), ["● present", "6", "present!"]),
    "one of two is open": (("absent", "undecided"), (), ["? undecided", "6", "undecided!"]),
    "both were tried": (("absent", "absent"), (), ["○ absent", "6", "absent!"]),
    "one came to no end": (
        ("absent",),
        open_leg("decode"),
        ["? undecided", "3", "decode has no verdict: a part has moved"],
    ),
}


@pytest.mark.parametrize("name", LEGS)
def test_a_fault_has_one_verdict_for_all_legs_of_a_runner(name: str) -> None:
    """It is never absent while one leg shows it or leaves it open, in whatever order they end."""
    verdicts, undecided, expected = LEGS[name]
    record = release(*verdicts, undecided=undecided)
    assert cells_of(fault_table(record)) == expected
    assert cells_of(release_table([("1", record)])) == [expected[0][0]]


def test_a_walk_says_nothing_of_legs_of_one_release_that_differ() -> None:
    walked = [("0", release("present", "absent")), ("1", release("absent", "present"))]
    assert changes(walked) == ["swa_pad on decode: present in 0, the first release with a verdict"]
