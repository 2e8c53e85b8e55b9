"""The GitHub action: its commands run here as a job of GitHub runs them, without the engine."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace
from paritybit.harness.cli.exit_codes import CANNOT_RUN, FINDING, MALFORMED, OK
from paritybit.harness.records.codec import encoded

from properties.support.places import ROOT
from properties.support.records import shown

PYTHON = """#!/bin/bash
if [ "$1 $2 $3" = "-m paritybit watch" ]; then
  printf '%s\\n' "$@" >words
  [ -f record ] && mkdir -p out/run && cp record out/run/watch.json && ln -s run out/latest
  exit "$CODE"
fi
exec "$REAL" "$@"
"""
"""What stands for `python`: it writes the record that is there in place of watching."""


def step(name: str) -> tuple[str, dict[str, str]]:
    """Return the script of a step of the action, and the inputs that its environment has."""
    _, _, text = (ROOT / "action.yml").read_text().partition(f"id: {name}\n")
    text, _, _ = text.partition("    - name:")
    given, _, script = text.partition("run: |\n")
    return textwrap.dedent(script), dict(re.findall(r"(\w+): \$\{\{ inputs\.(\w+) \}\}", given))


@pytest.mark.parametrize(
    ("code", "verdict", "known"),
    [
        (OK, "no finding", ""),
        (FINDING, "finding", "known.json"),
        (CANNOT_RUN, "undecided", ""),
        (MALFORMED, None, "known.json"),
    ],
)
def test_the_action_has_the_exit_code_and_the_outputs_of_its_run(
    code: int, verdict: str | None, known: str, tmp_path: Path
) -> None:
    """A run that cannot start has no outputs, even if an earlier one left a record."""
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    before = tmp_path / "out/before"
    before.mkdir(parents=True)
    (before / "watch.json").write_text(encoded(shown()))
    (tmp_path / "out/latest").symlink_to("before")
    if verdict is not None:
        (tmp_path / "record").write_text(encoded(replace(shown(), verdict=verdict)))
    inputs = {"engine": "an engine", "seconds": "9", "undecided": "fail", "out": "out"}
    inputs |= {"settings": "decode graphs", "baseline": "none.json", "known": known}
    script, names = step("watch")
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={
            **{name: inputs[given] for name, given in names.items()},
            **{"CODE": str(code), "REAL": sys.executable, "PYTHONPATH": str(ROOT)},
            **{"GITHUB_OUTPUT": "outputs", "GITHUB_STEP_SUMMARY": "summary"},
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    words = (tmp_path / "words").read_text().splitlines()
    assert words[words.index("--engine") + 1] == "an engine"
    assert words[words.index("--settings") + 1] == "decode graphs"
    assert ("--known" in words, "--baseline" in words) == (bool(known), False)
    if verdict is None:
        assert not (tmp_path / "outputs").exists()
        return
    outputs = dict(one.split("=", 1) for one in (tmp_path / "outputs").read_text().splitlines())
    assert outputs["verdict"] == verdict
    assert (tmp_path / outputs["record"]).is_file()
    assert verdict in (tmp_path / "summary").read_text()
