"""The GPUs that a process may use are those that the driver and the environment both name."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from paritybit.harness.machine.gpus import visible_gpus


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        ("2,5", ["2", "5"]),
        ("0", ["0"]),
        ("", []),
        ("-1", []),
        ("3,99,4", ["3"]),
        ("0,0", []),
        ("1,2,1", []),
        ("GPU-1a2b,GPU-3c4d", ["GPU-1a2b", "GPU-3c4d"]),
    ],
)
@pytest.mark.usefixtures("eight_gpus")
def test_the_visible_gpus_are_those_that_the_environment_names(
    named: str, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == seen


def listing(text: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a stand-in for subprocess.run that prints `text`."""
    return lambda words, **_: subprocess.CompletedProcess(words, 0, stdout=text, stderr="")


def test_where_the_environment_names_none_the_driver_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    text = "GPU 0: One (UUID: GPU-1)\n  MIG 1g (UUID: MIG-1)\nGPU 1: Two (UUID: GPU-2)\n"
    monkeypatch.setattr(subprocess, "run", listing(text))
    assert visible_gpus() == ["0", "1"]


def test_where_the_driver_cannot_be_asked_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 60)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(subprocess, "run", fail)
    assert visible_gpus() == []
