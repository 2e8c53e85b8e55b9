"""`paritybit regress` as a black box: its exit codes, and what it leaves behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.records.case import Case
from paritybit.harness.records.codec import load

from properties.support.harness.command_line import (
    CANNOT_RUN,
    FINDING,
    INTERRUPTED,
    LONGEST,
    OK,
    TERMINATED,
    in_its_own_group,
)
from properties.support.places import ROOT, copy_packages

RUN = ("regress", "--device", "cpu", "--model", "gpt_oss", "--out", "out")
NO_VARIABLES: Mapping[str, str] = {}

ALONE = ("-n", "1")
"""Options of pytest for one worker. Each takes seconds to start."""

MOST_SECONDS = 30
"""Seconds in which all processes of a stopped run end."""

PAIR = "loc_memo_warning@cpu_graph"
CASE = "loc_memo_warning-cpu_graph-gpt_oss.json"


def paritybit(
    folder: Path, *words: str, tree: Path = ROOT, variables: Mapping[str, str] = NO_VARIABLES
) -> subprocess.CompletedProcess[str]:
    """Run a command of a tree in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "paritybit", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(tree), **variables},
        capture_output=True,
        text=True,
        timeout=2 * LONGEST,
        check=False,
    )


def record_of(folder: Path) -> Any:
    """Return the record of the latest run, which has a page beside it."""
    latest = folder / "out" / "latest"
    assert "<title>" in (latest / "index.html").read_text()
    return json.loads((latest / "run.json").read_text())


def assert_names_nobody(text: str, folder: Path) -> None:
    """Find no absolute path, no user and no host in what a run wrote."""
    for name in (str(folder), str(ROOT), str(Path.home()), "nobody_of_note"):
        assert name not in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)


def test_a_green_run_leaves_a_record_a_page_and_a_case_which_a_rerun_repeats(
    tmp_path: Path,
) -> None:
    """The rerun selects the hunt by an option of pytest, and writes the same case byte for byte."""
    names = {"USER": "nobody_of_note", "LOGNAME": "nobody_of_note"}
    done = paritybit(tmp_path, *RUN, "--bug", PAIR, variables=names)
    assert (done.returncode, done.stderr) == (OK, ""), done.stdout
    detected = r"^loc_memo_warning-cpu_graph-gpt_oss: log_hygiene after \d+ schedules?, [\d.]+ s$"
    assert len(re.findall(detected, done.stdout, re.MULTILINE)) == 1
    passed = "green: 1 of 1 clean trials passed; 1 of 1 hunts ended as expected"
    assert passed in " ".join(done.stdout.split())
    record, first = record_of(tmp_path), (tmp_path / "out" / "latest").resolve()
    assert record["verdict"] == "green"
    assert record["command"] == f"paritybit {' '.join(RUN)} --bug {PAIR}"
    (row,) = record["bugs"]
    assert row["finding"]["case"] == json.loads((first / "cases" / CASE).read_text())
    assert load(first / "cases" / CASE, Case).target == "log_hygiene"
    for path in (first / "run.json", first / "index.html", first / "cases" / CASE):
        assert_names_nobody(path.read_text(), tmp_path)

    done = paritybit(
        tmp_path, *RUN, "--bug", PAIR, "--", "-k", "hunt", *ALONE, "--junitxml", "junit.xml"
    )
    assert done.returncode == OK, done.stdout + done.stderr
    again = (tmp_path / "out" / "latest").resolve()
    assert again != first and record_of(tmp_path)["clean"] == []
    assert (again / "cases" / CASE).read_bytes() == (first / "cases" / CASE).read_bytes()
    assert 'tests="1"' in (tmp_path / "junit.xml").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-k", "nothing"), "no trial or hunt was selected"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_a_run_of_nothing_and_a_wrong_option_of_pytest_have_no_verdict(
    options: Sequence[str], said: str, tmp_path: Path
) -> None:
    done = paritybit(tmp_path, *RUN, "--bug", PAIR, "--", *ALONE, *options)
    assert done.returncode == CANNOT_RUN
    assert said in done.stderr


PLANTED = {
    "wrong": ("row.policy is Policy.RESET and", "row.policy is Policy.RESET and row.value and"),
    "crash": ("row.policy is Policy.RESET and", "not os._exit(9) and"),
}
"""Edits of `subjects/buffers.py`: padding with zeros is not reset, and a process dies."""


@pytest.mark.parametrize(("fault", "code"), [("wrong", FINDING), ("crash", CANNOT_RUN)])
def test_a_wrong_engine_is_a_finding_and_a_crashed_worker_is_no_verdict(
    fault: str, code: int, tmp_path: Path
) -> None:
    tree, (old, new) = tmp_path / "tree", PLANTED[fault]
    copy_packages(tree)
    source = tree / "subjects" / "buffers.py"
    text = source.read_text()
    assert text.count(old) == 1
    source.write_text(
        text.replace(old, new).replace("\nimport torch\n", "\nimport os\n\nimport torch\n", 1)
    )
    words = ("--bug", "swa_pad@decode", "--", "-k", "clean", *ALONE)
    done = paritybit(tmp_path, *RUN, *words, tree=tree)
    assert done.returncode == code, done.stdout + done.stderr
    (row,) = record_of(tmp_path)["clean"]
    if fault == "wrong":
        (case,) = (tmp_path / "out/latest/cases").iterdir()
        assert row["status"] == "red"
        assert load(case, Case).violations
    else:
        assert row["status"] == "failed"
        assert "crashed while running" in row["error"]


def gone(group: int) -> bool:
    """Whether all processes of a group have ended, or do within some seconds."""
    deadline = time.monotonic() + MOST_SECONDS
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    ("number", "whole_group", "code"),
    [(signal.SIGINT, True, INTERRUPTED), (signal.SIGTERM, False, TERMINATED)],
)
def test_a_run_that_is_stopped_keeps_its_results_and_leaves_no_process(
    number: signal.Signals, whole_group: bool, code: int, tmp_path: Path
) -> None:
    """As a terminal sends Ctrl-C, and as a job is ended."""
    words = [*RUN[:-1], str(tmp_path / "out"), "--bug", "swa_pad", "--", "-k", "hunt", *ALONE]
    with in_its_own_group("-u", "-m", "paritybit", *words) as process:
        assert process.stdout is not None
        assert any("kv_parity after" in line for line in process.stdout)
        (os.killpg if whole_group else os.kill)(process.pid, number)
        process.communicate(timeout=LONGEST)
        assert gone(process.pid)
    assert process.returncode == code
    record = record_of(tmp_path)
    assert record["verdict"] == "interrupted"
    assert {row["status"] for row in record["bugs"]} == {"caught"}
    assert "did not finish" in record["message"]


def test_the_suite_with_a_bug_runs_the_clean_trials_alone_and_fails() -> None:
    words = ("-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "properties/verdicts")
    done = subprocess.run(
        [sys.executable, *words, "--bug", "swa_pad@decode", "--device", "cpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "bug swa_pad@decode switched on: tests are expected to fail" in done.stdout
    assert "caught: kv_parity at step" in done.stdout
    assert "1 failed" in done.stdout and "passed" not in done.stdout
