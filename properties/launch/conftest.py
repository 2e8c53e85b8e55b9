"""Commands for `paritybit watch`: scripts that write journals as a watched engine does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from paritybit.__main__ import main
from properties.support.harness.command_line import LONGEST
from properties.support.places import ROOT

ENGINE = """
import os, signal, subprocess, sys, time
from paritybit.watch.journal import Finding, of_process

STRAY = Finding(
    check="stray write", text="the replay of decode changed slot 17 (swa), which no row owns",
    key="stray write | swa | out_cache_loc_swa", forward=4, forward_kind="decode", group="swa",
    replay="decode", layer="layer 0", slots=(17, 18), count=2,
    writer={"request": "r1", "position": 12, "forward": 3},
    reader={"request": "r2", "position": 14, "forward": 4}, freed={"forward": 3},
    cause={"what": "the padded tail explains it", "input": "out_cache_loc_swa",
           "source": "/somewhere/sglang/srt/runner.py:373"},
)

def engine(findings=(), **counts):
    journal = of_process()
    journal.write("start", engine="toy", release="1.0", torch="2.9", python="3.12", device="cpu")
    journal.scope(page_size=1, model_path="/home/someone/model")
    journal.stand_in("attention", "there is no GPU")
    for finding in findings:
        journal.finding(finding)
    journal.count(**{"forwards": 5, "replays": 3, "padded_replays": 1, "reads": 40,
                     "shared_reads": 2, **counts})
    return journal
"""
"""What each script begins with: an engine that was watched, with counts that suffice."""

Script = Callable[[str], list[str]]
Watch = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Return the words that run a script after ENGINE."""

    def words(text: str) -> list[str]:
        path = tmp_path / "engine.py"
        path.write_text(ENGINE + text)
        return [sys.executable, str(path)]

    return words


def words_of(folder: Path, *words: str) -> list[str]:
    """Return the command line of paritybit with its reports in a folder."""
    words = ("watch", "--out", str(folder / "out"), *words)
    return [sys.executable, "-m", "paritybit", *words]


def variables() -> dict[str, str]:
    """Return the environment in which paritybit is started from this tree."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture
def watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Watch:
    """Run `paritybit watch` with some words in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        code = main(["watch", "--out", str(tmp_path / "out"), *words])
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return run


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    """Start `paritybit watch`, wait until its command has written `ready`, and return it."""
    running: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words_of(tmp_path, *words),
            cwd=tmp_path,
            env=variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        deadline = time.monotonic() + LONGEST
        while process.poll() is None and not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline, "the command did not start in time"
            time.sleep(0.02)
        return process

    yield start
    for process in running:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
