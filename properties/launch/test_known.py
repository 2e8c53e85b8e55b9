"""Known findings do not fail a run; others do, and those that do not occur are named."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from paritybit.launch.known import Known, KnownFinding, known_findings
from paritybit.launch.schema import Cause, RecordedFinding
from properties.launch.conftest import Script, Watch
from properties.support.harness.command_line import FINDING, MALFORMED, OK
from properties.support.known import STRAY, THREAD, listed

LEAK = {**STRAY, "check": "leak"}


def test_a_known_finding_is_shown_and_does_not_fail_the_run(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    known = listed(tmp_path, STRAY, LEAK)
    done = watch("--known", known, "--", *script("engine([STRAY] * 3)"))
    assert done.returncode == OK, done.stderr
    assert f"known: {THREAD}" in done.stderr
    assert "; 3 known findings" in done.stderr.splitlines()[-1]
    folder = tmp_path / "out" / "latest"
    data = json.loads((folder / "watch.json").read_text())
    assert data["verdict"] == "no finding"
    assert data["findings"][0]["known"] == THREAD
    page = (folder / "index.html").read_text()
    assert " · known" in page


def test_any_other_finding_fails_the_run(watch: Watch, script: Script, tmp_path: Path) -> None:
    expired = {**STRAY, "expires": "2020-01-01"}
    done = watch("--known", listed(tmp_path, LEAK, expired), "--", *script("engine([STRAY])"))
    assert done.returncode == FINDING, done.stderr
    assert "finding: 1 finding with 1 cause in" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "is not a paritybit-known file"),
        ('{"format": "paritybit-known", "version": 9}', "of version 9"),
        ('{"format": "paritybit-known", "version": 1, "known": [{}]}', "not a valid paritybit"),
        ('{"format": "paritybit-known", "version": 1, "known": [], "x": 1}', "unknown field `x`"),
        (json.dumps({"format": "paritybit-known", "version": 1,
                     "known": [{**STRAY, "expires": "soon"}]}), "not a valid paritybit"),
    ],
)  # fmt: skip
def test_another_file_is_malformed(
    watch: Watch, script: Script, tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "known.json").write_text(text, encoding="utf-8")
    done = watch("--known", str(tmp_path / "known.json"), "--", *script("engine()"))
    assert done.returncode == MALFORMED
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_finding_is_known_until_the_day_that_is_named() -> None:
    entry = KnownFinding("leak", "swa", THREAD, "2026-12-31")
    for day, known in (("2026-12-31", True), ("2027-01-01", False)):
        held = Known((entry,), datetime.date.fromisoformat(day))
        finding = RecordedFinding("leak", "text", "key", cause=Cause("swa"))
        assert held.where(finding) == (THREAD if known else None)
        assert held.where(structs.replace(finding, cause=Cause("full"))) is None


def test_a_source_tree_brings_its_own_file(tmp_path: Path) -> None:
    assert known_findings(None, "sglang==0.5.12").entries == ()
    assert known_findings(None, str(tmp_path)).entries == ()
    data: dict[str, Any] = {"format": "paritybit-known", "version": 1, "known": [STRAY]}
    (tmp_path / "paritybit-known.json").write_text(json.dumps(data), encoding="utf-8")
    assert known_findings(None, str(tmp_path)).entries == (KnownFinding(**STRAY),)
