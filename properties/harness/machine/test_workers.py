"""How many processes share the work, by cores, GPUs and MPS, and which GPU each one uses."""

import os

import pytest
from paritybit.harness.machine import workers
from paritybit.harness.machine.workers import (
    HERE,
    MOST_CLIENTS,
    Workers,
    cores,
    processes_on,
    sparing,
)


@pytest.mark.parametrize(
    ("here", "gpus", "shared", "best"),
    [
        (16, 1, False, 8),
        (16, 1, True, 15),
        (4, 1, False, 3),
        (1, 1, True, 1),
        (32, 2, False, 16),
        (32, 2, True, 31),
        (128, 8, False, 64),
        (128, 1, True, MOST_CLIENTS // 2),
        (16, 0, False, 8),
    ],
)
def test_on_gpus_as_many_work_as_cores_and_sharing_allow(
    here: int, gpus: int, shared: bool, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "cores", lambda: here)
    assert processes_on("cuda", gpus, mps=shared) == best
    assert processes_on("cpu", gpus, mps=shared) == here


def test_there_are_no_more_processes_than_tasks_but_one_at_least() -> None:
    assert [Workers(5).at_most(tasks).processes for tasks in (0, 3, 9)] == [1, 3, 5]
    assert HERE.at_most(3) == HERE


def test_one_worker_on_a_cpu_is_this_process() -> None:
    assert [sparing(Workers(count), "cpu") for count in (1, 2)] == [HERE, Workers(2)]
    assert [sparing(Workers(count), "cuda") for count in (1, 2)] == [Workers(1), Workers(2)]


def test_the_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5}, raising=False)
    assert cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1
