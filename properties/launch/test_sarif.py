"""The findings of a run as SARIF: at the engine's line, once per cause and check."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from paritybit.reports.sarif import sarif_of

from properties.launch.conftest import Script, Watch
from properties.support.records import shown, watched


def run_of(folder: Path) -> Any:
    """Return the only run of the SARIF file that was written."""
    data = json.loads((folder / "out" / "latest" / "findings.sarif").read_text())
    assert data["version"] == "2.1.0"
    (run,) = data["runs"]
    return run


def test_a_finding_stands_at_the_line_of_its_cause(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    text = "from dataclasses import replace\nfreed = {'forward': 3, 'source': 'sglang/a.py:7'}\n"
    text += "other = replace(STRAY, cause=None, freed=None, key='o', check='other')\n"
    text += "leak = replace(STRAY, key='k', check='leak', cause=None, freed=freed)\n"
    text += "later = replace(STRAY, key='l', text='a later one')\n"
    text += "engine([STRAY, STRAY, later, leak, other])"
    watch("--", *script(text))
    run = run_of(tmp_path)
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


ALLOWED: dict[str, set[str]] = {
    "log": {"$schema", "version", "runs"},
    "run": {"tool", "invocations", "results"},
    "driver": {"name", "version", "rules"},
    "invocation": {"commandLine", "executionSuccessful", "toolExecutionNotifications"},
    "result": {"ruleId", "level", "message", "partialFingerprints", "occurrenceCount", "locations"}
    | {"baselineState", "suppressions"},
    "physicalLocation": {"artifactLocation", "region", "contextRegion"},
    "artifactLocation": {"uri", "uriBaseId"},
    "contextRegion": {"startLine", "endLine", "snippet"},
    "suppression": {"kind", "justification"},
}
"""The properties that a file may have, of those that SARIF 2.1.0 has for each object."""


def test_each_object_has_properties_of_the_standard_alone() -> None:
    """Paths are relative references, lines count from 1, and words are those of the standard."""
    log = json.loads(json.dumps(sarif_of(shown(), "python/")))
    (run,) = log["runs"]
    places = [one["locations"][0]["physicalLocation"] for one in run["results"]]
    objects = {
        "log": [log],
        "run": [run],
        "driver": [run["tool"]["driver"]],
        "invocation": run["invocations"],
        "result": run["results"],
        "physicalLocation": places,
        "artifactLocation": [one["artifactLocation"] for one in places],
        "contextRegion": [one["contextRegion"] for one in places if "contextRegion" in one],
        "suppression": [one for result in run["results"] for one in result.get("suppressions", ())],
    }
    for name, found in objects.items():
        assert found, name
        assert all(set(one) <= ALLOWED[name] for one in found), name
    assert [one["baselineState"] for one in run["results"]] == ["new", "unchanged"]
    assert {one["level"] for one in run["results"]} == {"error"}
    assert all(one["region"]["startLine"] >= 1 for one in places)
    assert all(one["artifactLocation"]["uri"].startswith("python/") for one in places)
    assert all(one["message"]["text"] for one in run["results"])


SCHEMA = os.environ.get("PARITYBIT_SARIF_SCHEMA")


@pytest.mark.skipif(SCHEMA is None, reason="PARITYBIT_SARIF_SCHEMA names no file with the schema")
def test_it_is_valid_by_the_published_schema() -> None:
    jsonschema: Any = pytest.importorskip("jsonschema")
    schema = json.loads(Path(str(SCHEMA)).read_text(encoding="utf-8"))
    judge = jsonschema.validators.validator_for(schema)(schema)
    for record in (shown(), watched([]), replace(shown(), baseline=None)):
        found = json.loads(json.dumps(sarif_of(record)))
        assert [error.message for error in judge.iter_errors(found)] == []
