"""What a run leaves for a CI job: SARIF, JUnit, annotations, and the lines of the engine."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace
from paritybit.reports.junit import junit_of

from properties.launch.conftest import Script, Watch
from properties.support.known import STRAY, listed
from properties.support.records import watched


def test_a_finding_in_sarif_is_at_the_line_of_its_cause(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    text = "from dataclasses import replace\nfreed = {'forward': 3, 'source': 'sglang/a.py:7'}\n"
    text += "other = replace(STRAY, cause=None, freed=None, key='o', check='other')\n"
    text += "leak = replace(STRAY, key='k', check='leak', cause=None, freed=freed)\n"
    text += "later = replace(STRAY, key='l', text='a later one')\n"
    text += "engine([STRAY, STRAY, later, leak, other])"
    watch("--", *script(text))
    path = tmp_path / "out" / "latest" / "findings.sarif"
    (run,) = json.loads(path.read_text())["runs"]
    stray, leak, other = run["results"]
    assert (stray["ruleId"], stray["level"], stray["occurrenceCount"]) == (
        "stray-write",
        "error",
        2,
    )
    where = stray["locations"][0]["physicalLocation"]
    assert where["artifactLocation"] == {"uri": "runner.py", "uriBaseId": "%SRCROOT%"}
    assert where["region"] == {"startLine": 373}
    assert "read: read by request r2, position 14" in stray["message"]["text"]
    assert "suppressions" not in stray
    (freed,) = leak["locations"]
    assert freed["physicalLocation"]["artifactLocation"]["uri"] == "sglang/a.py"
    (first,) = other["locations"]
    assert first["physicalLocation"]["artifactLocation"]["uri"] == "toy/__init__.py"
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["leak", "other", "stray-write"]
    assert run["invocations"][0]["executionSuccessful"]


def test_a_run_without_a_verdict_is_an_error_of_the_suite() -> None:
    record = replace(watched([]), verdict="undecided", message="no\x01", undecided=("why",))
    suite = ET.fromstring(junit_of(record)).find("testsuite")
    assert suite is not None
    assert suite.get("errors") == "1"
    assert suite.findtext("testcase/error") == "why"


def test_an_annotation_stands_at_the_line_of_the_engine(
    watch: Watch, script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    done = watch("--", *script("engine([STRAY])"))
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("::error ")]
    assert line.startswith("::error file=runner.py,line=373,title=out_cache_loc_swa::")
    done = watch("--known", listed(tmp_path, STRAY), "--", *script("engine([STRAY])"))
    assert "::error" not in done.stderr


def test_a_finding_carries_the_lines_of_the_engine_around_it(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    folder = tmp_path / "toyengine"
    folder.mkdir()
    (folder / "pool.py").write_text("".join(f"line = {n}\n" for n in range(1, 10)))
    text = "from dataclasses import replace\n"
    text += "cause = {'what': 'the tail', 'source': 'toyengine/pool.py:2'}\n"
    text += "engine([replace(STRAY, cause=cause)])"
    watch("--", *script(text))
    latest = tmp_path / "out" / "latest"
    (one,) = json.loads((latest / "watch.json").read_text())["findings"]
    assert one["excerpt"][1] == [2, "line = 2"]
    assert len(one["excerpt"]) == 5
    assert "line = 5" in (latest / "index.html").read_text()
    (result,) = json.loads((latest / "findings.sarif").read_text())["runs"][0]["results"]
    region = result["locations"][0]["physicalLocation"]["contextRegion"]
    assert (region["startLine"], region["endLine"]) == (1, 5)
    assert region["snippet"]["text"].startswith("line = 1\n")
