"""How many processes work at once, and which GPU each of them sees."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from paritybit.harness.campaigns import plugin
from paritybit.harness.machine import workers
from paritybit.harness.machine.workers import processes_on


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
