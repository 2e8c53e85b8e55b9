"""`paritybit export-test` and `check_case`: exit codes, and what they print."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.cli.exit_codes import CANNOT_RUN, MALFORMED, OK

from paritybit.__main__ import main
from paritybit.drive.engines import Driven
from paritybit.testing import UndecidedError, check_case
from properties.support.places import CORPUS

CASE = Path(__file__).parent / "cases/sglang.json"


def data(**changes: object) -> dict[str, Any]:
    """Return the JSON data of a case, with some changes."""
    return {**json.loads(CASE.read_text(encoding="utf-8")), **changes}


def export_of(folder: Path, given: dict[str, Any], *words: str) -> int:
    """Export a case in a folder; return the exit code."""
    file = folder / "finding-1.json"
    file.write_text(json.dumps(given), encoding="utf-8")
    return main(["export-test", str(file), *words])


@pytest.mark.parametrize("engine", ["sglang", "transformers", "vllm"])
def test_a_test_is_written_next_to_its_case(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CASE.with_name(f"{engine}.json").read_text(encoding="utf-8")
    assert export_of(tmp_path, json.loads(text)) == OK
    made = tmp_path / "test_finding_1.py"
    lines = len(made.read_text(encoding="utf-8").splitlines())
    assert lines <= 80
    assert capsys.readouterr().out == f"{lines} lines: {made}\n"


def test_the_form_with_the_sanitizer_is_shorter(tmp_path: Path) -> None:
    given = data(key="leak | swa | x", text='"""\nimport os\n')
    assert export_of(tmp_path, given, "--with-paritybit") == OK
    code = (tmp_path / "test_finding_1.py").read_text(encoding="utf-8")
    assert len(code.splitlines()) < 20
    held: dict[str, Any] = {}
    exec(compile(code, "test.py", "exec"), held)
    assert held["CASE"] == given


def test_what_is_no_case_of_watch_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-test", str(CORPUS / "swa_pad@decode.json")]) == MALFORMED
    assert "is not a case of watch; export-test takes no other" in capsys.readouterr().err


def test_a_law_without_a_test_has_its_own_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export_of(tmp_path, data(key="moved address | - | x")) == CANNOT_RUN
    said = capsys.readouterr().err
    assert "a moved address cannot be observed without the sanitizer" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "test_finding_1.py").exists()


def test_settings_of_no_engine_are_malformed(tmp_path: Path) -> None:
    script = {"settings": {"model": "gemma4"}, "waves": []}
    assert export_of(tmp_path, data(script=script)) == MALFORMED


class Ended:
    """Stands for a process that has ended."""

    def __init__(self, stdout: str = "", stderr: str = "") -> None:
        self.stdout, self.stderr = stdout, stderr


RUNS = (
    ("Ran 1 test in 1 s\n\nFAILED (failures=1)\n", OK),
    ("Ran 1 test in 1 s\n\nFAILED (errors=1)\n", CANNOT_RUN),
    ("Ran 1 test in 1 s\n\nOK\n", CANNOT_RUN),
    ("Ran 1 test in 1 s\n\nOK (skipped=1)\n", CANNOT_RUN),
    ("", CANNOT_RUN),
)


@pytest.mark.parametrize(("stderr", "code"), RUNS)
def test_the_test_must_fail_on_the_engine_that_is_named(
    stderr: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Starter:
        @staticmethod
        def prepare(spec: str) -> None:
            """Fetch nothing."""

        @staticmethod
        def playing(*given: object) -> tuple[list[str], dict[str, str]]:
            """Return no words and no variables."""
            return [], {}

    ran: list[list[str]] = []

    def run(words: list[str], **named: object) -> Ended:
        ran.append(words)
        return Ended(stderr=stderr)

    monkeypatch.setattr(Driven, "starter", Starter)
    monkeypatch.setattr(subprocess, "run", run)
    assert export_of(tmp_path, data(), "--engine", "sglang==0.5.11") == code
    assert ran[0][1:] == [
        *("-m", "paritybit.drive.on_cpu", "sglang"),
        *("-m", "unittest", "test_finding_1.py"),
    ]


@pytest.mark.parametrize(
    ("printed", "raised"),
    [
        ("paritybit: case.json: reproduced: the finding appeared in forward 3", AssertionError),
        ("paritybit: case.json: not reproduced: no finding", None),
        ("paritybit: case.json: not reproduced, but 2 other findings", None),
        ("paritybit: case.json: no verdict: no engine was loaded", UndecidedError),
        ("", UndecidedError),
    ],
)
def test_check_case_says_what_replay_says(
    printed: str, raised: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda words, **named: Ended(printed))
    if raised is None:
        check_case(data(), "sglang==0.5.11")
        return
    with pytest.raises(raised) as found:
        check_case(data(), "sglang==0.5.11")
    assert str(found.value) == printed
