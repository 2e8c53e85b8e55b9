"""Case files of engines: their form, and those that earlier builds wrote."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.engines.case import EngineCase, cases_of, is_of_engine, load_engine_case
from paritybit.harness.engines.playlist import SHRINKING
from paritybit.harness.errors import CannotRunError
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.records.case import Case
from paritybit.harness.schedules.schedule import to_json

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, MALFORMED
from properties.support.places import CORPUS

CASE = Case(TrialConfig(), SHRINKING, "kv_parity", 3, ())


def written(folder: Path, **changed: Any) -> Path:
    """Return a case file of an engine, some of its entries changed."""
    path = folder / "case.json"
    EngineCase("sglang==1", CASE).write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    return path


def of_version_1(target: str) -> dict[str, Any]:
    """Return a case as version 1 had it, in the words of that time."""
    trial = TrialConfig().to_json()
    trial["era"] = trial.pop("scheme")
    return {
        "format": "paritybit-engine-case",
        "version": 1,
        "engine": "sglang==1",
        "runner": "decode",
        "trial": trial,
        "schedule": to_json(SHRINKING),
        "seed": 3,
        "sought": target,
        "told": "step 6: it differs",
    }


def test_a_case_of_an_engine_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert is_of_engine(json.loads(path.read_text()))
    assert not is_of_engine([path])
    assert load_engine_case(path) == EngineCase("sglang==1", CASE)


@pytest.mark.parametrize(
    ("target", "called_now"),
    [("write_frame", "write_frame"), ("hermetic_reads", "hermetic_replay")],
)
def test_a_case_of_version_1_is_read_with_what_its_property_is_called_now(
    target: str, called_now: str, tmp_path: Path
) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(of_version_1(target)))
    read = load_engine_case(path)
    assert (read.engine, read.case.target, read.case.schedule) == (
        "sglang==1",
        called_now,
        SHRINKING,
    )
    assert read.case.expected == {called_now}


def test_a_trial_keeps_a_case_of_each_property_by_leg() -> None:
    found = cases_of("sglang==1", [CASE])
    assert found == {"kv_parity-decode-gpt_oss.json": EngineCase("sglang==1", CASE)}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"engine": 3}, "3 is not a valid engine for a case"),
        ({"case": {**CASE.to_json(), "seed": "0"}}, "'0' is not a valid seed for a case"),
        ({"case": {**CASE.to_json(), "schedule": []}}, "a schedule must have exactly the keys"),
        ({"case": []}, "a case must have exactly these keys"),
        ({"extra": 1}, "a case must have exactly these keys"),
        ({"version": 3}, "has version 3"),
        ({"version": 1}, "a case must have exactly these keys"),
    ],
)
def test_a_malformed_case_of_an_engine_is_refused_in_one_sentence(
    changed: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(written(tmp_path, **changed))]) == MALFORMED
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_case_decides_no_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine that it names, a folder here, is run when the command line names it too."""

    def find(spec: str) -> None:
        raise CannotRunError(f"{spec} is looked for")

    monkeypatch.setattr("paritybit.harness.engines.fetch.find", find)
    path = written(tmp_path, engine=str(tmp_path))
    for words in (["replay", str(path)], ["bisect", "--case", str(path)]):
        assert main(words) == MALFORMED
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "name the engine with --engine" in said
        assert main([*words, "--engine", "sglang==2"]) == CANNOT_RUN
        assert capsys.readouterr().err == "paritybit: sglang==2 is looked for\n"


def test_a_case_names_no_path_of_the_machine_it_was_found_on(tmp_path: Path) -> None:
    violation = {
        "property": "kv_parity",
        "step": 0,
        "message": "in /home/someone/a.py",
        "where": {},
    }
    EngineCase("sglang==1", replace(CASE, violations=(violation,))).write(tmp_path / "case.json")
    (kept,) = load_engine_case(tmp_path / "case.json").case.violations
    assert kept["message"] == "in a.py"


def test_a_case_of_this_build_takes_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    path = CORPUS / "swa_pad@decode.json"
    assert main(["replay", str(path), "--engine", "sglang==0.5.11"]) == MALFORMED
    assert "not the case of an engine" in capsys.readouterr().err
