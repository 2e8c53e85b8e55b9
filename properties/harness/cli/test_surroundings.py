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
from paritybit.harness.cli.names import catalogue

from paritybit.__main__ import main
from properties.support.harness.command_line import CANNOT_RUN, LONGEST, MALFORMED, OK, python
from properties.support.places import CORPUS, ROOT

ASCII = {"PYTHONIOENCODING": "ascii"}

NASTY = "a b';touch x;$$HOME\"|`c"
"""A setting that no shell must read; make itself reads two dollars as one."""

READ_BY = {
    target: set(names.split())
    for target, names in re.findall(
        r"^READ_BY_(\S+) := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M
    )
}
"""The settings that each target of the Makefile says that it reads."""

TARGETS = {
    target: sorted(named) for target, names in READ_BY.items() if (named := names - {"ARGS", "MPS"})
}
"""Those of them that are handed on as one word."""


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
@pytest.mark.parametrize("target", TARGETS)
def test_every_setting_of_make_is_one_word_of_the_command(target: str, tmp_path: Path) -> None:
    """The interpreter is one that prints its words, and says that nothing is missing."""
    interpreter = tmp_path / "python"
    interpreter.write_text(PRINTS_WORDS)
    interpreter.chmod(0o755)
    settings = [f"{name}={NASTY}" for name in TARGETS[target]]
    done = made(f"PYTHON={interpreter}", target, *settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines().count(NASTY.replace("$$", "$")) == len(settings)


@NEEDS_MAKE
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("test", "CASE=x"), "make test does not read CASE; it reads ARGS BUG DEVICE"),
        (("replay", "CASE=x", "BUG=y"), "make replay does not read BUG; it reads"),
        (("regress", "BUGS=swa_pad"), "make regress does not read BUGS; it reads"),
        (("list", "NOTHING=1"), "make list does not read NOTHING; it reads ARGS PYTHON"),
        (("regress", "MPS=no"), "MPS=no must be 1 or 0"),
    ],
)
def test_a_setting_that_would_change_nothing_is_refused(words: tuple[str, ...], said: str) -> None:
    """Passed over, it is a false green: `make replay DEVICE=cuda` once replayed on a CPU."""
    done = made("-n", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"Makefile:\d+: \*\*\* {re.escape(said)}.*  Stop\.\n", done.stderr)


@NEEDS_MAKE
def test_a_setting_that_one_of_several_targets_reads_is_taken() -> None:
    done = made("-n", "regress", "summary", "BUG=swa_pad", "RECORD=x", "MPS=0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--mps" not in done.stdout


@NEEDS_MAKE
def test_what_another_make_hands_down_is_not_refused() -> None:
    """Its own settings come with every call that it makes."""
    assert made("-n", "list", "VERBOSE=1", level="1").returncode == 0


def test_a_target_of_make_says_which_settings_its_commands_read() -> None:
    """`RUN` is PYTHON's, which every target reads, and `SHARED` says what MPS is."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipes = re.findall(r"^([a-z-]+): .*\n((?:\t.*\n)+)", text.replace("\\\n", ""), re.M)
    read = {
        target: {
            name.replace("SHARED", "MPS")
            for name in re.findall(r"\$\(([A-Z]+)\)", recipe)
            if name != "RUN"
        }
        for target, recipe in recipes
    }
    assert {target: names for target, names in read.items() if names} == READ_BY


def test_an_interpreter_without_asserts_and_docstrings_does_as_any_other() -> None:
    """It lists what runners are, which their docstrings say."""
    plain, bare = (
        python("-m", "paritybit", "list", "runners", variables=named)
        for named in ({}, {"PYTHONOPTIMIZE": "2"})
    )
    assert plain.returncode == OK and "decode " in plain.stdout
    assert (bare.returncode, bare.stdout, bare.stderr) == (OK, plain.stdout, plain.stderr)


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
    catalogue.cache_clear()
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
        ("bench", "--record=PRIVATE/record.json"),
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
