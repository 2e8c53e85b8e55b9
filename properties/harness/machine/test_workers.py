"""How many processes work at once, and which GPU each of them sees."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paritybit.harness.campaigns import plugin
from paritybit.harness.machine import workers
from paritybit.harness.machine.workers import mps_answers, processes_on

from properties.support.places import ROOT


@pytest.mark.parametrize(
    ("device", "present", "gpus", "mps", "count"),
    [
        ("cpu", 16, 8, False, 16),
        ("cuda", 16, 1, False, 8),
        ("cuda", 16, 2, False, 15),
        ("cuda", 16, 1, True, 15),
        ("cuda", 64, 1, True, 24),
        ("cuda", 1, 1, True, 1),
    ],
)
def test_on_gpus_as_many_work_as_cores_and_sharing_allow(
    device: str, present: int, gpus: int, mps: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "cores", lambda: present)
    assert processes_on(device, gpus, mps=mps) == count


@pytest.mark.parametrize(("name", "gpu"), [("gw0", "2"), ("gw1", "5"), ("gw2", "2"), ("gw11", "5")])
@pytest.mark.usefixtures("eight_gpus")
def test_a_worker_sees_one_gpu_in_turn(
    name: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    plugin.pin("cuda", name)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu


@pytest.mark.usefixtures("eight_gpus")
def test_auto_takes_cuda_where_a_gpu_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(device: str) -> str:
        config: Any = SimpleNamespace(getoption=lambda _: device)
        return plugin.chosen_device(config)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert [chosen(device) for device in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert chosen("auto") == "cpu"
    with pytest.raises(pytest.UsageError, match="needs a GPU, but none is visible"):
        chosen("cuda")


CONTROL = """#!/bin/sh
control=${CUDA_MPS_PIPE_DIRECTORY:-/nowhere}/control
if [ "$1" = -f ]; then
    [ "$REFUSES" ] && exit 1
    touch "$control"
    while [ -e "$control" ]; do sleep 0.1; done
    exit
fi
if [ ! -e "$control" ]; then echo "Cannot find MPS control daemon process"; exit; fi
case $(cat) in quit*) rm "$control"; touch "$(dirname "$0")/stopped";; esac
"""
"""A stand-in for NVIDIA's program."""

ANSWERS = """
from paritybit.harness.machine.workers import mps_answers
raise SystemExit(3 + mps_answers())
"""


def test_a_command_runs_with_an_mps_daemon_which_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)  # That of a suite under MPS.
    assert not mps_answers()
    words: list[Any] = [ROOT / ".ci" / "with-mps", sys.executable, "-c", ANSWERS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(words, env=environment, timeout=100, check=False).returncode == 4
    assert (tmp_path / "stopped").exists()
    environment["REFUSES"] = "yes"
    done = subprocess.run(words, env=environment, timeout=100, check=False, capture_output=True)
    assert done.returncode == 125
    assert b"no MPS daemon answers" in done.stderr
