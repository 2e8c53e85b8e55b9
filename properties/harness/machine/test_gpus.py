"""The GPUs that a process may use are those that the driver and the environment both name."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from paritybit.harness.machine import gpus
from paritybit.harness.machine.gpus import free_memory, visible_gpus


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


def test_the_environment_names_no_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "gpu_names", list)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert visible_gpus() == []


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


@pytest.mark.parametrize(
    "error",
    [
        PermissionError("nvidia-smi"),
        subprocess.CalledProcessError(9, "nvidia-smi"),
        subprocess.TimeoutExpired("nvidia-smi", 60),
    ],
    ids=lambda error: type(error).__name__,
)
def test_where_the_driver_cannot_be_asked_there_is_no_gpu(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(subprocess, "run", fail)
    assert visible_gpus() == []


FREE = "0, GPU-1a2b, 142000\n1, GPU-3c4d, 80\n2, GPU-5e6f, [N/A]\n"
"""What a driver answers that does not know of one GPU how much of its memory is free."""


@pytest.mark.parametrize(
    ("named", "free"), [("0,1,2", [142000, 80]), ("1", [80]), ("GPU-1a", [142000]), ("", [])]
)
@pytest.mark.usefixtures("eight_gpus")
def test_the_driver_says_how_much_memory_is_free_on_the_gpus_that_may_be_used(
    named: str, free: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without CUDA; nothing where there is no driver's program."""

    def answers(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, FREE)

    def missing(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        raise FileNotFoundError

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr(subprocess, "run", answers)
    assert free_memory() == [mebibytes * 2**20 for mebibytes in free]
    monkeypatch.setattr(subprocess, "run", missing)
    assert free_memory() == []
