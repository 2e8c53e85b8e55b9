"""Whatever surrounds a command does it no harm: make, an ASCII terminal, python -OO, no xdist."""

import errno
import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, LONGEST, MALFORMED, OK, python
from properties.support.places import CORPUS, ROOT

ASCII = {"PYTHONIOENCODING": "ascii"}

NASTY = "a b';touch x;$$HOME\"|`c"
"""A setting that no shell must read; make itself reads two dollars as one."""

READ_BY = {
    target: sorted(names.split())
    for target, names in re.findall(
        r"^READ_BY_(\S+) := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M
    )
}
"""The settings that each target of the Makefile hands on as options."""


PRINTS_WORDS = """#!/bin/sh
case "$1" in *satisfied.py) echo yes;; *) printf '%s\\n' "$@";; esac
"""


def made(*words: str, level: str = "0") -> subprocess.CompletedProcess[str]:
    """Run make here, with some words, and with nothing of a make that runs this suite."""
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
        env={"PATH": os.environ["PATH"], "MAKELEVEL": level},
    )


NEEDS_MAKE = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")


@NEEDS_MAKE
@pytest.mark.parametrize("target", READ_BY)
def test_every_setting_of_make_is_one_option_of_the_command(target: str, tmp_path: Path) -> None:
    """The interpreter is one that prints its words, and says that nothing is missing."""
    interpreter = tmp_path / "python"
    interpreter.write_text(PRINTS_WORDS)
    interpreter.chmod(0o755)
    named = [name for name in READ_BY[target] if name != "MPS"]
    done = made(f"PYTHON={interpreter}", target, *(f"{name}={NASTY}" for name in named))
    assert (done.returncode, done.stderr) == (0, "")
    options = [word for name in named for word in (f"--{name.lower()}", NASTY.replace("$$", "$"))]
    words = done.stdout.splitlines()
    assert sorted(words[-len(options) :]) == sorted(options)
    if target not in {"test", "bench"}:
        assert words[:3] == ["-m", "paritybit", target]


@NEEDS_MAKE
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("test", "CASE=x"), "make test does not read CASE; it reads ARGS BUG DEVICE"),
        (("BUGS=swa_pad",), "make regress does not read BUGS; it reads"),
        (("check", "NOTHING=1"), "make check does not read NOTHING; it reads ARGS PYTHON"),
        (("regress", "MPS=no"), "MPS=no must be 1 or 0"),
    ],
)
def test_a_setting_that_would_change_nothing_is_refused(words: tuple[str, ...], said: str) -> None:
    """Passed over, it is a false green: `make test ENGINE=…` would test no such engine."""
    done = made("-n", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"Makefile:\d+: \*\*\* {re.escape(said)}.*  Stop\.\n", done.stderr)


@NEEDS_MAKE
def test_a_setting_that_one_of_several_targets_reads_is_taken() -> None:
    done = made("-n", "READY=1", "regress", "watch", "BUG=swa_pad", "ENGINE=x", "MPS=1")
    assert (done.returncode, done.stderr) == (0, "")
    regress, watch = done.stdout.splitlines()
    assert "--bug" in regress and "--mps" in regress and "--engine" not in regress
    assert "--engine" in watch and "--mps" not in watch


@NEEDS_MAKE
def test_what_another_make_hands_down_is_not_refused() -> None:
    """Its own settings come with every call that it makes."""
    assert made("-n", "READY=1", "documents", "VERBOSE=1", level="1").returncode == 0


def test_a_terminal_of_few_signs_is_no_error() -> None:
    done = python("-m", "paritybit", "list", variables=ASCII)
    assert (done.returncode, done.stderr) == (OK, "")
    assert done.stdout.isascii()
    done = python("-m", "paritybit", "regress", "--bug", "é…", variables=ASCII)
    assert done.stderr.startswith("paritybit: unknown bug '\\xe9\\u2026'; ")


def test_a_user_without_a_home_folder_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As in a container that runs under a number that no user has."""

    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME", "PARITYBIT_ENGINES", "HYPOTHESIS_STORAGE_DIRECTORY"):
        monkeypatch.setenv(name, "")  # So that it is again as it was, whatever main sets.
        monkeypatch.delenv(name)
    assert main(["list", "runners"]) == OK
    assert "decode " in capsys.readouterr().out
    assert main(["engine", "0.5.12"]) == CANNOT_RUN
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "paritybit: cannot store sglang-0.5.12 in the engine folder (PARITYBIT_ENGINES): "
        "Not a directory\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_current_folder_that_was_deleted_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    """torch, or a library below it, would end the process with a code of its own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    said = "paritybit: the current folder cannot be used: No such file or directory\n"
    assert refused(CANNOT_RUN, "replay", CORPUS / "swa_pad@decode.json") == said


@pytest.mark.parametrize(
    "words",
    [
        ("report",),
        ("watch", "--known=PRIVATE/known.json", "--", "true"),
        ("regress", "--out=PRIVATE/out"),
    ],
)
def test_a_folder_that_may_not_be_entered_is_refused(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    """However its path was given: as a word, in a word, or as a default."""
    before = Path.stat

    def private(path: Path, **how: Any) -> os.stat_result:
        if path.is_relative_to(tmp_path / "paritybit-out" / "latest"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return before(path, **how)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "stat", private)
    here = str(tmp_path / "paritybit-out" / "latest")
    said = refused(MALFORMED, *(word.replace("PRIVATE", here) for word in words))
    assert "is not a valid path: Permission denied" in said


def test_the_suite_runs_without_xdist(tmp_path: Path) -> None:
    """Fixtures and hooks that are there for its workers too."""
    (tmp_path / "test_here.py").write_text("def test_here(artifacts): assert artifacts.is_dir()\n")
    shutil.copy(ROOT / "conftest.py", tmp_path)
    words = ("-p", "no:xdist", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
    done = python("-m", "pytest", *words, f"--rootdir={tmp_path}", ".", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
