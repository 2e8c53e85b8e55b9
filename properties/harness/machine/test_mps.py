"""The private MPS daemon: started where it can be, stopped whatever happens; another is left alone.

NVIDIA's programs are stand-ins on the PATH.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.errors import CannotRunError
from paritybit.harness.machine import mps
from paritybit.harness.machine.mps import answers, private_daemon

from properties.support.harness.command_line import (
    LONGEST,
    in_its_own_group,
)
from properties.support.harness.fake_gpus import FakeGpus

VARIABLES = (mps.PIPES, mps.LOGS)


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Two GPUs, of which the second is visible, and no daemon that runs."""
    found = FakeGpus.made(tmp_path / "bin", gpus=2)
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return found


def test_within_there_is_a_daemon_and_after_it_none(fakes: FakeGpus) -> None:
    """It sees all GPUs, so that the names its clients use mean the same; it is told to quit."""
    before = dict(os.environ)
    assert not answers()
    with private_daemon("auto"):
        assert answers()
        ((process, pipe, gpus),) = fakes.daemons
        assert Path(f"/proc/{process}").exists()
        assert (os.environ[mps.PIPES], gpus) == (str(pipe), "all")
        assert Path(os.environ[mps.LOGS]).is_dir()
        assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    assert fakes.gone()
    assert fakes.commands[-1].startswith("quit")
    assert dict(os.environ) == before


@pytest.fixture
def running(fakes: FakeGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The pipe folder of a daemon of someone else's, which the environment names."""
    pipe = tmp_path / "of-someone"
    pipe.mkdir()
    monkeypatch.setenv(mps.PIPES, str(pipe))
    with subprocess.Popen([fakes.folder / "nvidia-cuda-mps-control", "-f"]) as process:
        try:
            deadline = time.monotonic() + LONGEST
            while not (pipe / "control").exists():
                assert time.monotonic() < deadline
            yield pipe
            (pipe / "control").unlink()
            process.wait(LONGEST)
        finally:
            process.kill()  # Which is nothing if it has ended.


@pytest.mark.usefixtures("fakes")
def test_a_daemon_that_was_running_answers_and_is_never_touched(running: Path) -> None:
    assert answers()
    with private_daemon("cuda"):
        assert os.environ[mps.PIPES] != str(running)
    assert (running / "control").exists()
    assert os.environ[mps.PIPES] == str(running)


WAITING = """
import sys, time
from paritybit.harness.machine.mps import private_daemon
from paritybit.harness.machine.stopping import Stop, listening

with listening(Stop()), private_daemon("auto"):
    print("waiting", flush=True)
    time.sleep(3600)
"""
"""A process that never ends of itself, under a daemon of its own."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_daemon_is_stopped_however_its_process_ends(
    number: signal.Signals, fakes: FakeGpus
) -> None:
    with in_its_own_group("-c", WAITING) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        assert Path(f"/proc/{fakes.daemons[0][0]}").exists()
        os.killpg(process.pid, number)  # As a terminal does, and `timeout`: the whole group.
        process.communicate(timeout=60)
    assert fakes.gone()


def no_program(fakes: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    (fakes.folder / "nvidia-cuda-mps-control").unlink()
    monkeypatch.setenv("PATH", str(fakes.folder))  # A machine with a GPU may have the real one.


def no_gpu(fakes: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def refuses(fakes: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    (fakes.folder / "refuses").touch()


@pytest.mark.parametrize(
    ("what", "device", "why"),
    [
        (no_program, "cuda", ": nvidia-cuda-mps-control cannot be run: No such file or directory"),
        (no_gpu, "cuda", " because no GPU is visible"),
        (refuses, "cuda", ": nvidia-cuda-mps-control exited with code 1: the daemon's reason"),
        (no_gpu, "cpu", " because this run uses the CPU"),
    ],
)
def test_where_no_daemon_can_start_one_sentence_says_why(
    what: Any, device: str, why: str, fakes: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    what(fakes, monkeypatch)
    before = dict(os.environ)
    with pytest.raises(CannotRunError) as ended, private_daemon(device):
        raise AssertionError
    assert str(ended.value) == f"--mps cannot start an MPS daemon{why}"
    assert dict(os.environ) == before
