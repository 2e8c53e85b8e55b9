"""What a run leaves for a CI job: JUnit, a Markdown summary, annotations, and its last lines."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace
from paritybit.reports.junit import junit_of

from paritybit.launch.schema import Cause, Finding, Who
from paritybit.launch.scope import not_served
from paritybit.launch.words import CauseGroup
from properties.launch.conftest import Script, Watch
from properties.support.known import STRAY, THREAD, listed
from properties.support.records import LEG, watched

SOURCE = "subjects/captured.py:12"


def found(cause: str, **fields: Any) -> Finding:
    stray = Finding("stray write", "slot 7 changed", f"s | {cause}", number=2, leg=LEG.name)
    return replace(stray, cause=Cause("the tail", cause, SOURCE), **fields)


def test_a_failing_leg_stands_in_the_suite_at_the_line_of_the_engine() -> None:
    known = found("b", known=THREAD)
    record = watched([found("a"), known, found("a", leg="overlap", known=THREAD)])
    legs = (LEG, replace(LEG, name="overlap"))
    rows = {"few slots": "lacking", **{f"row {number}": "no time" for number in range(9)}}
    record = replace(record, legs=legs, not_tried=tuple(not_served(rows)))
    suite = ET.fromstring(junit_of(record, "python/")).find("testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5", "failures": "1", "errors": "0", "skipped": "2"
    }  # fmt: skip
    first, second, skipped, many, verdict = suite.findall("testcase")
    assert (first.get("file"), first.get("line")) == ("python/subjects/captured.py", "12")
    failure = first.find("failure")
    assert failure is not None
    assert failure.get("message") == "stray write: slot 7 changed"
    assert "cause: the tail (" in str(failure.text)
    assert THREAD in str(first.findtext("system-out"))
    assert second.find("failure") is None
    assert (skipped.get("name"), many.get("name")) == ("few slots", "9 rows of settings")
    assert verdict.find("error") is None


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


@pytest.mark.parametrize(
    ("cause", "freed", "place"),
    [
        (Cause("what", source="engine/a.py:3"), Who(source="engine/b.py:7"), "at engine/a.py:3"),
        (Cause("what"), Who(source="engine/b.py:7"), "freed at engine/b.py:7"),
        (None, Who(source="engine/b.py:7"), "freed at engine/b.py:7"),
        (None, Who(forward=3), None),
        (None, None, None),
    ],
)
def test_the_line_of_a_cause_is_told_from_the_line_that_freed_a_slot(
    cause: Cause | None, freed: Who | None, place: str | None
) -> None:
    finding = Finding("leak", "text", "key", 1, "leg", "group", cause=cause, freed=freed)
    assert CauseGroup("group", (finding,)).place == place
