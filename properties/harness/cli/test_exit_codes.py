"""Exit code 1 is a finding and nothing else; without a verdict, there is one sentence."""

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
from paritybit.harness.checks.property import Violation
from paritybit.harness.errors import CannotRunError, MalformedError
from paritybit.harness.schedules.schedule import Schedule

from paritybit.__main__ import main
from properties.support.harness.command_line import (
    CANNOT_RUN,
    FINDING,
    INTERRUPTED,
    LONGEST,
    MALFORMED,
    TERMINATED,
    kept_traceback,
    python,
)
from properties.support.places import CORPUS, ROOT, copy_packages

LIST = "paritybit.harness.cli.names.run_list"
"""What stands for any command."""

CASE = CORPUS / "swa_pad@decode.json"

VIOLATION = Violation("captured_path", 0, "an illegal access")
ERRORS: dict[str, tuple[BaseException, int, str]] = {
    "malformed": (MalformedError("a\nb"), MALFORMED, r"a\nb"),
    "missing": (CannotRunError("no GPU"), CANNOT_RUN, "no GPU"),
    "interrupted": (KeyboardInterrupt(), INTERRUPTED, "interrupted"),
    "lost by the engine": (
        DeviceLostError(Schedule(()), Outcome((VIOLATION,))),
        FINDING,
        "the device was lost: an illegal access",
    ),
    "lost by the project": (
        DeviceLostError(Schedule(()), Outcome((), error="ZeroDivisionError: ours")),
        CANNOT_RUN,
        "the device was lost: ZeroDivisionError: ours",
    ),
    "internal": (
        LookupError("ours"),
        CANNOT_RUN,
        "no verdict: internal error: LookupError: ours; full traceback: ",
    ),
    "memory": (MemoryError(), CANNOT_RUN, "no verdict: internal error: MemoryError; full "),
}
"""What a command raises, its exit code, and the sentence on stderr."""


def raising(error: BaseException) -> Any:
    """Return a command that raises."""

    def run(*_: Any, **__: Any) -> int:
        raise error

    return run


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_is_one_sentence_and_an_exit_code(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error, code, said = ERRORS[what]
    monkeypatch.setattr(LIST, raising(error))
    assert main(["list"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith(f"paritybit: {said}")
    if "full traceback" in captured.err:
        assert "in run\n    raise error\n" in kept_traceback(captured.err)


def test_a_tree_that_cannot_be_imported_gives_no_verdict(tmp_path: Path) -> None:
    """So that `git bisect run` skips such a commit."""
    copy_packages(tmp_path)
    (tmp_path / "harness/cli/replay.py").write_text("def broken(:\n")
    path = {"PYTHONPATH": str(tmp_path)}
    done = python("-m", "paritybit", "replay", str(CASE), folder=tmp_path, variables=path)
    assert (done.returncode, done.stdout) == (CANNOT_RUN, "")
    assert "replay.py" in kept_traceback(done.stderr)


STOPPED = """
import os
import paritybit.__main__

def run(words, stop):
    try:
        exec("os.kill(os.getpid(), {number})")
    except KeyboardInterrupt:
        raise {then}

paritybit.__main__.exit_code_of = run
raise SystemExit(paritybit.__main__.main(["list"]))
"""
"""A command that gets a signal while it runs."""


@pytest.mark.parametrize(
    ("number", "then", "code"),
    [
        (signal.SIGTERM, "", TERMINATED),
        (signal.SIGINT, "", INTERRUPTED),
        (signal.SIGINT, "ImportError", INTERRUPTED),
    ],
)
def test_a_signal_ends_a_command_with_one_sentence(
    number: int, then: str, code: int, tmp_path: Path
) -> None:
    """It runs as a module, because Python may end `python -m` by SIGINT."""
    (tmp_path / "stopped.py").write_text(STOPPED.format(number=int(number), then=then))
    done = subprocess.run(
        [sys.executable, "-m", "stopped"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "paritybit: interrupted\n")


def test_ctrl_c_that_an_import_swallows_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, refused: Any
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
    assert refused(INTERRUPTED, "regress") == "paritybit: interrupted\n"
    assert ran == []


def test_a_deleted_current_folder_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    """Torch would end the process with a code of its own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert "the current folder cannot be used: No such file" in refused(CANNOT_RUN, "replay", CASE)
