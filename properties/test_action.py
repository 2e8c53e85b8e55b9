"""The GitHub action: its commands run here as a job of GitHub runs them, without the engine."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
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


def run(
    script: str, folder: Path, given: Mapping[str, str], programs: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the script of a step as a job of GitHub runs it."""
    path = os.environ["PATH"] if programs is None else f"{programs}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={"PATH": path, "GITHUB_OUTPUT": "outputs", "GITHUB_STEP_SUMMARY": "summary", **given},
        capture_output=True,
        text=True,
        check=False,
    )


def outputs_of(folder: Path) -> dict[str, str]:
    """Return the outputs of the steps that ran in a folder."""
    lines = (folder / "outputs").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


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
    given = {name: inputs[one] for name, one in names.items()}
    given |= {"CODE": str(code), "REAL": sys.executable, "PYTHONPATH": str(ROOT)}
    done = run(script, tmp_path, given, python.parent)
    assert done.returncode == code, done.stderr
    words = (tmp_path / "words").read_text().splitlines()
    assert words[words.index("--engine") + 1] == "an engine"
    assert words[words.index("--settings") + 1] == "decode graphs"
    assert ("--known" in words, "--baseline" in words) == (bool(known), False)
    if verdict is None:
        assert not (tmp_path / "outputs").exists()
        return
    outputs = outputs_of(tmp_path)
    assert outputs["verdict"] == verdict
    assert (tmp_path / outputs["record"]).is_file()
    assert verdict in (tmp_path / "summary").read_text()


def test_the_key_of_the_cache_changes_with_what_is_installed(tmp_path: Path) -> None:
    """It begins with that of what is restored, which has the version of Python and the pins."""
    runner = {"HOME": str(tmp_path), "RUNNER_OS": "Linux", "RUNNER_ARCH": "X64"}
    pins, _ = step("pins")
    assert run(pins, tmp_path, {**runner, "ACTION": str(ROOT)}).returncode == 0
    pinned = outputs_of(tmp_path)
    python = subprocess.run(
        ["python", "-c", "import sys; print(sys.implementation.cache_tag)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert f"-Linux-X64-{python}-" in pinned["key"]
    folder = Path(pinned["folder"])
    assert folder == tmp_path / ".cache/paritybit/engines" / python
    installed, _ = step("installed")
    given = {**runner, "FOLDER": str(folder), "KEY": pinned["key"]}
    keys = []
    for name in ("", "dependencies", "transformers-5.6.0"):
        if name:
            (folder / name).mkdir(parents=True)
        (tmp_path / "outputs").unlink(missing_ok=True)
        assert run(installed, tmp_path, given).returncode == 0
        keys.append(outputs_of(tmp_path)["key"] if (tmp_path / "outputs").exists() else "")
    assert not keys[0]  # Nothing to keep.
    assert len({*keys}) == len(keys)
    assert all(key.startswith(pinned["key"]) for key in keys[1:])


def test_the_workflows_of_the_page_are_valid_and_name_inputs_and_outputs_of_the_action(
    tmp_path: Path,
) -> None:
    """`make check` installs actionlint. It checks inputs and outputs of a local action alone."""
    actionlint = shutil.which("actionlint", path=str(Path(sys.executable).parent))
    if actionlint is None:
        pytest.skip("actionlint is not installed: make check")
    page = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    workflows = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert workflows
    (tmp_path / ".git").mkdir()
    (folder := tmp_path / ".github/workflows").mkdir(parents=True)
    shutil.copy(ROOT / "action.yml", tmp_path)
    for number, workflow in enumerate(workflows):
        local, uses = re.subn(r"ACCOUNT/paritybit@v[\d.]+$", "./", workflow, flags=re.MULTILINE)
        assert uses
        (folder / f"{number}.yml").write_text(local)
    words = [actionlint, "-no-color", "-shellcheck=", "-pyflakes="]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("codes", "code", "says"),
    [
        ({}, 0, ""),
        ({"watch transformers": 125}, 0, ""),
        ({"watch transformers": 1}, 1, "transformers==5.24.0 ended with 1 instead of 0 125"),
        ({"watch transformers": 2}, 1, "transformers==5.24.0 ended with 2 instead of 0 125"),
        ({"engine transformers": 125}, 0, "transformers==5.24.0 was not tried"),
        ({"engine transformers": 2}, 1, "transformers==5.24.0 was not downloaded: 2"),
        ({"engine sglang==0.5.23": 2}, 1, "sglang==0.5.23 was not downloaded: 2"),
        ({"engine sglang==0.5.11": 2}, 1, "sglang==0.5.11 was not downloaded: 2"),
        ({"watch sglang==0.5.11": 0}, 1, "sglang==0.5.11 ended with 0 instead of 1"),
        ({"watch sglang==0.5.23": 125}, 1, "sglang==0.5.23 ended with 125 instead of 0"),
    ],
    ids=str,
)
def test_the_check_of_released_engines_fails_unless_each_ends_as_expected(
    codes: Mapping[str, int], code: int, says: str, tmp_path: Path
) -> None:
    """A release that no package index has is not tried. A wrong hash (2) is an error."""
    ends = {"watch sglang==0.5.11": 1, **codes}
    cases = "".join(f'"{one}"*) exit {ends[one]};;\n' for one in sorted(ends, key=len)[::-1])
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/bash
[ "$4" = --engine ] && given=$5 || given=$4
case "$3 $given" in
{cases}esac
""")
    python.chmod(0o755)
    done = subprocess.run(
        [ROOT / ".ci/engines"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert says in done.stdout
