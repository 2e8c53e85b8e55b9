"""Exit code 1 is a finding and nothing else; what is no verdict is one sentence and a file."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from paritybit.harness.checks.play import DeviceLostError, Outcome
from paritybit.harness.schedules.schedule import Schedule

from paritybit.__main__ import main
from properties.support.harness.command_line import (
    CANNOT_RUN,
    INTERRUPTED,
    LONGEST,
    TERMINATED,
    in_its_own_group,
    kept_traceback,
)
from properties.support.places import CORPUS, ROOT, copy_packages
from properties.support.quick import quick

LIST = "paritybit.harness.cli.names.run_list"
"""What stands for any command."""


def raising(error: BaseException) -> Any:
    """Return a command that raises."""

    def run(*_: Any, **__: Any) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    "error", [OSError("of\nours"), MemoryError()], ids=lambda error: type(error).__name__
)
def test_an_error_that_nobody_expected_is_no_verdict_and_its_traceback_is_kept(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LIST, raising(error))
    assert main(["list"]) == CANNOT_RUN
    captured = capsys.readouterr()
    assert captured.out == ""
    text = kept_traceback(captured.err)
    assert text.startswith("Traceback (most recent call last):\n")
    assert f"in run\n    raise error\n{type(error).__name__}" in text


def test_a_traceback_that_cannot_be_written_stands_in_the_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr(LIST, raising(LookupError("of ours")))
    assert main(["list"]) == CANNOT_RUN
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "No such file" in said
    assert "raise error" in said


def test_a_device_that_is_lost_by_an_error_of_ours_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = DeviceLostError(Schedule(()), Outcome((), error="ZeroDivisionError: of ours"))
    monkeypatch.setattr(LIST, raising(lost))
    assert main(["list"]) == CANNOT_RUN
    said = capsys.readouterr().err
    assert said == "paritybit: the device was lost: ZeroDivisionError: of ours\n"


BROKEN = {
    "subjects/pool.py": "def broken(:\n",
    "harness/cli/values.py": "raise ImportError('of ours')\n",
}
"""Files of the tree, and what makes them impossible to import."""


@pytest.mark.parametrize("file", BROKEN)
def test_a_tree_that_cannot_be_imported_gives_no_verdict(file: str, tmp_path: Path) -> None:
    """So that `git bisect run` skips such a commit, and does not take it for a bad one."""
    copy_packages(tmp_path)
    (tmp_path / file).write_text(BROKEN[file])
    done = command_in(tmp_path, "replay", str(CORPUS / "swa_pad@decode.json"))
    assert (done.returncode, done.stdout) == (CANNOT_RUN, "")
    assert Path(file).name in kept_traceback(done.stderr)


def command_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the tree in a folder."""
    return subprocess.run(
        quick("-m", "paritybit", *words),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )


STOPPED = """
import os, sys
import paritybit.__main__

def run(words, stop, own):
    try:
        {kill}
    except KeyboardInterrupt:
        {then}

paritybit.__main__.answered = run
sys.exit(paritybit.__main__.main(["list"]))
"""
"""A command that is sent a signal while it runs, and what becomes of it there."""

HEARD = {
    "in a file": "os.kill(os.getpid(), {number})",
    "in text, as dataclasses run it": 'exec("os.kill(os.getpid(), {number})")',
}

BECOMES = {"it goes on": "raise", "an import turns it into an error": "raise ImportError"}


@pytest.mark.parametrize(
    ("where", "number", "code", "then"),
    [
        ("in a file", signal.SIGTERM, TERMINATED, "it goes on"),
        ("in a file", signal.SIGINT, INTERRUPTED, "it goes on"),
        (
            "in text, as dataclasses run it",
            signal.SIGINT,
            INTERRUPTED,
            "an import turns it into an error",
        ),
    ],
)
def test_what_stops_a_process_is_said_in_one_sentence(
    where: str, number: int, code: int, then: str, tmp_path: Path
) -> None:
    """It is run as a module, as `python -m harness` is, which Python may end by SIGINT."""
    kill = HEARD[where].format(number=int(number))
    (tmp_path / "stopped.py").write_text(STOPPED.format(kill=kill, then=BECOMES[then]))
    done = subprocess.run(
        quick("-m", "stopped"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "paritybit: interrupted\n")


def test_ctrl_c_while_torch_is_imported_is_one_sentence(tmp_path: Path) -> None:
    """A command line that must be checked by what takes long to import."""
    words = ["-X", "importtime", "-m", "paritybit", "replay", str(tmp_path / "none")]
    with in_its_own_group(*words) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "torch" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    said = [line for line in rest.splitlines() if not line.startswith("import time:")]
    assert (process.returncode, said) == (INTERRUPTED, ["paritybit: interrupted"])


def test_ctrl_c_that_an_import_swallows_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As torch's import of numpy does, which then is half there: a run would be red by that."""
    ran: list[Any] = []

    class Module(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name != "run_regress":
                raise AttributeError(name)
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            return lambda **options: ran.append(options)

    monkeypatch.setitem(sys.modules, "paritybit.harness.cli.regress", Module("regress"))
    assert main(["regress"]) == INTERRUPTED
    assert (ran, capsys.readouterr().err) == ([], "paritybit: interrupted\n")
