"""The Makefile passes settings on to commands, and refuses those that it would ignore."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from properties.support.harness.command_line import LONGEST
from properties.support.places import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")

NASTY = "a b';touch x;$$HOME\"|`c"
"""A setting that no shell must read; make itself reads two dollars as one."""

READ_BY = {
    target: [name for name in names.split() if name != "MPS"]
    for target, names in re.findall(
        r"^READ_BY_(\S+) := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M
    )
}
"""The settings that each target passes on."""

PRINTS_WORDS = """#!/bin/sh
case "$1" in *satisfied.py) echo yes;; *) printf '%s\\n' "$@";; esac
"""


def made(*words: str) -> subprocess.CompletedProcess[str]:
    """Run make, with nothing of a make that runs this suite."""
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )


@pytest.mark.parametrize("target", READ_BY)
def test_a_setting_is_one_option_of_the_command(target: str, tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(PRINTS_WORDS)
    interpreter.chmod(0o755)
    names = READ_BY[target]
    done = made(f"PYTHON={interpreter}", target, *(f"{name}={NASTY}" for name in names))
    assert (done.returncode, done.stderr) == (0, "")
    options = [word for name in names for word in (f"--{name.lower()}", NASTY.replace("$$", "$"))]
    assert done.stdout.splitlines()[-len(options) :] == options


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("test", "CASE=x"), "make test does not read CASE; it reads ARGS BUG DEVICE"),
        (("BUGS=swa_pad",), "make regress does not read BUGS; it reads"),
        (("check", "NOTHING=1"), "make check does not read NOTHING; it reads ARGS PYTHON"),
        (("regress", "MPS=no"), "MPS=no must be 1 or 0"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(words: tuple[str, ...], said: str) -> None:
    done = made("-n", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"Makefile:\d+: \*\*\* {re.escape(said)}.*  Stop\.\n", done.stderr)
