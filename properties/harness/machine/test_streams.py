"""Whatever becomes of a process's streams, its command keeps what it finds, and its exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paritybit.harness.records.codec import save

from properties.support.harness.command_line import CANNOT_RUN, LONGEST, MALFORMED, OK
from properties.support.places import ROOT
from properties.support.reports.records import green

BROKEN = "paritybit: cannot write to stdout: Broken pipe\n"


def in_a_shell(line: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in which `$paritybit` is the command line, and `"$@"` the words."""
    commands = {"paritybit": f"{sys.executable} -m paritybit"}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}", "bash", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **commands},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The record of a run."""
    save(green(), tmp_path / "run.json")
    return tmp_path / "run.json"


def test_a_reader_that_goes_away_is_no_finding(record: Path) -> None:
    done = in_a_shell('$paritybit report --markdown "$1" | true', record)
    assert (done.returncode, done.stderr) == (CANNOT_RUN, BROKEN)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("watch --help <&- >&- 2>&-", OK),
        ("nothing 2>&-", MALFORMED),
        ("nothing 2>/dev/full", MALFORMED),
        ("watch --help >/dev/full 2>&-", CANNOT_RUN),
    ],
)
def test_streams_that_are_closed_or_full_change_no_exit_code(line: str, code: int) -> None:
    done = in_a_shell(f"$paritybit {line}")
    assert (done.returncode, done.stderr) == (code, "")
