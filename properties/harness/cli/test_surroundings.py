"""Whatever surrounds a command does it no harm: make, an ASCII terminal, python -OO, no xdist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from properties.support.harness.command_line import FINDING, LONGEST, OK, python
from properties.support.places import CORPUS, ROOT

CASE = str(CORPUS / "swa_pad@decode.json")

ASCII = {"PYTHONIOENCODING": "ascii"}

NASTY = "a b';touch x;$$HOME\"|`c"
"""A setting that no shell must read; make itself reads two dollars as one."""

TARGETS = {
    "regress": ["BUG", "RUNNER", "PRESET", "SEED", "EXAMPLES", "DEVICE", "ENGINE"],
    "engine": ["VERSION"],
    "bisect-releases": ["BUG", "RUNNER", "PRESET", "SEED", "EXAMPLES", "DEVICE"],
    "planted-engine": ["VERSION", "RUNNER"],
    "releases": ["SEED", "EXAMPLES", "DEVICE"],
    "replay": ["CASE", "ENGINE"],
    "bisect": ["BUGS", "CASE", "ENGINE", "RUNNER"],
    "timeline": ["DEVICE"],
    "corpus": ["BUG"],
    "mutants": ["DEVICE", "EXAMPLES", "RUNNER"],
    "report": ["RECORD"],
    "compare": ["A", "B"],
    "summary": ["RECORD"],
    "bench": ["DEVICE"],
    "soak": ["DEVICE", "ENGINE", "RUNNER", "PRESET"],
    "detections": ["DEVICE"],
}
"""Targets of the Makefile, and the settings that each hands on."""


PRINTS_WORDS = """#!/bin/sh
case "$1" in *satisfied.py) echo yes;; *) printf '%s\\n' "$@";; esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")
@pytest.mark.parametrize("target", TARGETS)
def test_every_setting_of_make_is_one_word_of_the_command(target: str, tmp_path: Path) -> None:
    """The interpreter is one that prints its words, and says that nothing is missing."""
    interpreter = tmp_path / "python"
    interpreter.write_text(PRINTS_WORDS)
    interpreter.chmod(0o755)
    settings = [f"{name}={NASTY}" for name in TARGETS[target]]
    done = subprocess.run(
        ["make", "--no-print-directory", f"PYTHON={interpreter}", target, *settings],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines().count(NASTY.replace("$$", "$")) == len(settings)


BOTH = "import sys; from harness.__main__ import main; print(main(['list']), main(sys.argv[1:]))"


def test_an_interpreter_without_asserts_and_docstrings_does_as_any_other(tmp_path: Path) -> None:
    """What runners are, which their docstrings say, and what a replay says."""
    without = {"PYTHONOPTIMIZE": "2", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    plain, bare = (python("-c", BOTH, "replay", CASE, variables=named) for named in ({}, without))
    assert bare.stdout.endswith(f"differs\n{OK} {FINDING}\n")
    assert (bare.stdout, bare.stderr) == (plain.stdout, plain.stderr)


def test_a_terminal_of_few_signs_is_no_error() -> None:
    done = python("-m", "harness", "list", variables=ASCII)
    assert (done.returncode, done.stderr) == (OK, "")
    assert done.stdout.isascii()
    done = python("-m", "harness", "replay", CASE, CASE, variables=ASCII)
    assert (done.returncode, done.stderr) == (OK, "")
    done = python("-m", "harness", "replay", "é….json", variables=ASCII)
    assert re.fullmatch(r"paritybit: \\xe9\\u2026\.json cannot be read: .*\n", done.stderr)


def test_the_suite_runs_without_xdist(tmp_path: Path) -> None:
    """Fixtures and hooks that are there for its workers too."""
    (tmp_path / "test_here.py").write_text("def test_here(artifacts): assert artifacts.is_dir()\n")
    shutil.copy(ROOT / "conftest.py", tmp_path)
    words = ("-p", "no:xdist", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
    done = python("-m", "pytest", *words, f"--rootdir={tmp_path}", ".", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
