"""Where engines are kept, who fetches one, and what CI makes of one that it cannot have."""

import errno
import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.errors import CannotRunError

from paritybit.__main__ import main
from paritybit.engines import fetch
from properties.support.harness.command_line import CANNOT_RUN, LONGEST
from properties.support.places import ROOT


@pytest.mark.parametrize("place", ["/proc/engines", "a file"])
def test_a_folder_of_engines_that_cannot_be_written_is_said_before_anything_is_fetched(
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a file").touch()

    def download(*_: Any) -> Path:
        raise AssertionError("nothing is fetched")

    monkeypatch.setattr("paritybit.engines.fetch._download", download)
    monkeypatch.setattr("paritybit.engines.fetch.pip", download)
    monkeypatch.setenv("PARITYBIT_ENGINES", str(tmp_path / place))
    assert main(["engine", "0.5.12"]) == CANNOT_RUN
    said = capsys.readouterr().err
    assert "cannot store sglang-0.5.12 in the engine folder (PARITYBIT_ENGINES): " in said


def test_an_environment_without_pip_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that uv has made."""
    found = importlib.util.find_spec
    without = lambda name, *words: None if name == "pip" else found(name, *words)  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", without)
    monkeypatch.setenv("PARITYBIT_ENGINES", str(tmp_path))
    assert main(["engine", "0.5.12"]) == CANNOT_RUN
    assert capsys.readouterr().err == (
        "paritybit: downloading an engine needs the package pip: install the extra "
        "'paritybit[engines]'\n"
    )


def test_a_folder_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    home = tmp_path / "engines" / "sglang-1"
    with pytest.raises(ZeroDivisionError), fetch.filling(home) as target:
        (target / "sglang").touch()
        raise ZeroDivisionError
    with fetch.filling(home):
        pass
    assert list(home.parent.iterdir()) == []
    for name in ("first", "second"):
        with fetch.filling(home) as target:
            (target / name).touch()
    assert [path.name for path in home.parent.iterdir()] == [home.name]
    assert [path.name for path in home.iterdir()] == ["first"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    said = "cannot store sglang-1 in the engine folder .PARITYBIT_ENGINES.: No space left"
    with (
        pytest.raises(CannotRunError, match=said),
        fetch.filling(tmp_path / "sglang-1") as target,
    ):
        (target / "sglang").touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


FETCHES = {
    "both are fetched": ("0 0", 0),
    "no index answers": ("125 125", 0),
    "the first has another hash": ("2 0", 1),
    "the second has another hash": ("0 2", 1),
    "an error of ours": ("1 1", 1),
}
"""How the fetches of the two releases end that CI tries, and how its script does."""

ENDS_AS_TOLD = """#!/bin/sh
set -- "$@" $ENDS
case "$*" in
  *"paritybit engine 0.5.11"*) exit "$5";;
  *"paritybit engine 0.5.23"*) exit "$6";;
  *"--engine sglang==0.5.11"*) exit 1;;
esac
"""


@pytest.mark.parametrize("what", FETCHES)
def test_in_ci_only_an_index_that_does_not_answer_excuses_a_release_that_was_not_tried(
    what: str, tmp_path: Path
) -> None:
    """The interpreter is one that ends as it is told; both trials end as they should."""
    ends, code = FETCHES[what]
    interpreter = tmp_path / "python"
    interpreter.write_text(ENDS_AS_TOLD)
    interpreter.chmod(0o755)
    variables = {**os.environ, "PYTHON": str(interpreter), "ENDS": ends}
    done = subprocess.run(
        [ROOT / ".ci/engines"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert (done.returncode, done.stdout.count("was not tried")) == (
        code,
        ends.split().count("125"),
    )
