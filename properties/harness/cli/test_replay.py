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


CASES: dict[str, tuple[dict[str, Any], int, str]] = {
    "finding": ({}, FINDING, "kv_parity"),
    "clean": ({"bugs": []}, OK, "clean"),
    "other": ({"target": "next_tokens"}, CANNOT_RUN, "instead of the recorded violation of next"),
    "unknown": ({"bugs": ["nonsense"]}, CANNOT_RUN, "does not have: unknown bug 'nonsense'"),
    "vacuous": ({"steps": []}, CANNOT_RUN, "runs no forward, so it proves nothing"),
}
"""What is changed in a case, its exit code, and a part of what is said of it."""

PLACES = {"bugs": ("trial", "bugs"), "steps": ("schedule", "steps"), "target": ("target",)}


@pytest.mark.parametrize(
    ("names", "code"),
    [
        *(([name], CASES[name][1]) for name in CASES),
        (["clean", "finding"], FINDING),
        (["unknown", "finding"], FINDING),
        (["clean", "other"], CANNOT_RUN),
        (["clean", "vacuous"], CANNOT_RUN),
        (["unknown", "clean"], CANNOT_RUN),
        (["clean", "clean"], OK),
        (["finding", "finding"], FINDING),
    ],
    ids=str,
)
def test_the_exit_code_of_cases_says_whether_their_findings_appear(
    names: list[str], code: int, case_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same for one case, some files, and a folder: a finding before no verdict."""
    paths = copies(case_file, *(f"{number}-{name}" for number, name in enumerate(names)))
    for path, name in zip(paths, names, strict=True):
        for what, value in CASES[name][0].items():
            edit(path, *PLACES[what], value=value)
    assert main(["replay", *map(str, paths)]) == code
    captured = capsys.readouterr()
    assert main(["replay", str(paths[0].parent)]) == code
    assert capsys.readouterr() == captured
    said = captured.out + captured.err
    assert all(CASES[name][2] in said for name in names), said
    if len(names) > 1:
        codes = [CASES[name][1] for name in names]
        marks = [re.escape(path.name) for path in paths]
        assert all(
            re.search(f"^(finding|no finding|no verdict) +{one}", said, re.M) for one in marks
        )
        numbers = [codes.count(one) for one in (FINDING, OK, CANNOT_RUN)]
        total = "{} cases: {} finding, {} no finding, {} no verdict\n"
        assert captured.out.endswith(total.format(len(names), *numbers))


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
