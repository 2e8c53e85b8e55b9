"""Replaying case files: one with all that it shows, or many, each against what it says."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from paritybit.__main__ import main
from properties.support.harness.command_line import (
    CANNOT_RUN,
    FINDING,
    OK,
    edit,
    kept_traceback,
)

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


@without_gpu
def test_a_case_found_on_cuda_cannot_run_without_a_gpu(case_file: Path, refused: Any) -> None:
    edit(case_file, "trial", "device", value="cuda")
    assert "CUDA" in refused(CANNOT_RUN, "replay", case_file)


@pytest.mark.parametrize("what", ["bugs", "runner", "preset"])
def test_a_case_of_what_this_build_lacks_cannot_run(
    what: str, case_file: Path, refused: Any
) -> None:
    edit(case_file, "trial", what, value=["nonsense"] if what == "bugs" else "nonsense")
    message = refused(CANNOT_RUN, "replay", case_file)
    named = what.removesuffix("s")
    assert (
        f"case.json uses names that this build does not have: unknown {named} 'nonsense'; "
    ) in message


def test_a_case_replays_as_a_finding_and_without_its_bug_as_clean(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(case_file)]) == FINDING
    message = capsys.readouterr().out
    assert re.search(r"^step 3: kv_parity: .*slot \d+ of request", message, re.M)
    assert "4 steps, 2 replays (1 padded): differs" in message
    edit(case_file, "trial", "bugs", value=[])
    assert main(["replay", str(case_file)]) == OK
    assert capsys.readouterr().out == "4 steps, 2 replays (1 padded): clean\n"


def copies(case_file: Path, *names: str) -> list[Path]:
    """Return copies of a case in a folder of their own."""
    folder = case_file.parent / "cases"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.json").write_text(case_file.read_text())
    return sorted(folder.iterdir())


def test_many_cases_are_each_held_against_what_they_say(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of them, or several by name: one line each, in order, and a sum."""
    broken, clean, wrong = copies(case_file, "a", "b", "c")
    for path in (clean, wrong):
        edit(path, "trial", "bugs", value=[])
    edit(clean, "target", value=None)
    assert main(["replay", str(broken), str(clean)]) == OK
    message = capsys.readouterr().out
    assert re.findall(r"^(reproduced|not reproduced) +(\w+: \w+)", message, re.M) == [
        ("reproduced", "a: kv_parity"),
        ("reproduced", "b: clean"),
    ]
    assert message.endswith("2 cases: 2 reproduced, 0 not reproduced, 0 without a verdict\n")
    assert main(["replay", str(broken.parent)]) == FINDING
    message = capsys.readouterr().out
    assert re.search(r"^not reproduced +c: clean; expected kv_parity$", message, re.M)
    assert message.endswith("3 cases: 2 reproduced, 1 not reproduced, 0 without a verdict\n")


def test_a_case_that_cannot_run_here_is_told_among_others(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not stop the others; a case that does otherwise counts for more."""
    able, unable = copies(case_file, "a", "b")
    edit(unable, "trial", "bugs", value=["nonsense"])
    assert main(["replay", str(able.parent)]) == CANNOT_RUN
    message = capsys.readouterr().out
    assert (
        "cannot run b.json uses names that this build does not have: unknown bug 'nonsense'"
    ) in message
    assert message.endswith("2 cases: 1 reproduced, 0 not reproduced, 1 without a verdict\n")
    edit(able, "trial", "bugs", value=[])
    assert main(["replay", str(able.parent)]) == FINDING


def test_a_case_that_proves_nothing_does_otherwise(
    case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A schedule without a forward: alone it cannot run, among others it is not what it says."""
    vacuous, able = copies(case_file, "a", "b")
    edit(vacuous, "schedule", "steps", value=[])
    edit(vacuous, "target", value=None)
    assert main(["replay", str(vacuous)]) == CANNOT_RUN
    assert main(["replay", str(vacuous), str(able)]) == FINDING
    assert "a: runs no forward, so it proves nothing" in capsys.readouterr().out


def test_an_explainer_that_fails_hides_no_violation(
    case_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explain(*_: Any) -> None:
        raise RuntimeError("cannot explain")

    monkeypatch.setattr("paritybit.harness.campaigns.task.explanation", explain)
    assert main(["replay", str(case_file)]) == FINDING
    captured = capsys.readouterr()
    assert re.search(r"^step 3: kv_parity: .*^  no explanation: ", captured.out, re.M | re.S)
    assert captured.out.endswith("4 steps, 2 replays (1 padded): differs\n")
    assert kept_traceback(captured.err).endswith("RuntimeError: cannot explain\n")
