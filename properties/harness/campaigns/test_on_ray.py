"""A campaign on a Ray cluster gives what it gives here, whatever becomes of its processes.

Run where Ray is installed and PARITYBIT_RAY is set: a cluster takes seconds to start.
"""

import importlib.util
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from paritybit.harness.campaigns.executor import Campaign, Ended
from paritybit.harness.campaigns.regress import TASKS
from paritybit.harness.campaigns.spreading import on_ray
from paritybit.harness.campaigns.spreading.backends import execute
from paritybit.harness.campaigns.task import Result, Source, Task, run_in_turn
from paritybit.harness.lockstep.config import TrialConfig
from paritybit.harness.lockstep.scale.shapes import one_size
from paritybit.harness.machine.workers import LOCAL, Workers

from properties.support.harness.executor_tasks import CHORES, Chore, Done

on_a_cluster = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or not os.environ.get("PARITYBIT_RAY"),
    reason="Ray is not installed, or PARITYBIT_RAY is not set",
)
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, as it starts and ends processes.


def ends_of(campaign: Campaign[Any, Any], tasks: list[Any], workers: Workers) -> dict[Any, Any]:
    """Return how tasks ended, each once."""
    ends: list[Ended[Any, Any]] = []
    before = signal.getsignal(signal.SIGTERM)
    execute(campaign, tasks, workers, ends.append)
    assert signal.getsignal(signal.SIGTERM) is before
    assert len({ended.task for ended in ends}) == len(ends) == len(tasks)
    return {ended.task: ended for ended in ends}


@on_a_cluster
def test_tasks_end_on_a_cluster_as_they_do_here(tmp_path: Path) -> None:
    """One whose process dies is done again, and that is noted; one that always dies fails."""
    dies_once = Chore(f"die the first time {tmp_path / 'died'}")
    bad, well = [Chore("raise"), Chore("die"), Chore("lose the device")], [Chore("a"), Chore("b")]
    workers = Workers(2, cluster=LOCAL)
    ends = ends_of(CHORES, [dies_once, *bad, *well], workers)
    died = sorted(CHORES.label(task) for task in (dies_once, Chore("die")))
    assert sorted(workers.again) == [(name, "the process died") for name in died]
    assert (tmp_path / "died").exists()
    for task in (dies_once, *well):
        assert ends[task].error is None
        assert isinstance(ends[task].result, Done)
    assert ends[Chore("raise")].error.endswith("LookupError: first line\nsecond line\n")
    assert ends[Chore("die")].error == "the process died 3 times"
    assert ends[Chore("lose the device")].result.spoiled


@on_a_cluster
def test_what_a_node_was_at_that_is_lost_is_done_by_the_others() -> None:
    """A cluster that was there before: it is joined by its address, and left as it was."""
    cluster_utils = importlib.import_module("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    nodes: set[bool] = set()
    ends: list[Ended[Chore, Done]] = []

    def on_end(ended: Ended[Chore, Done]) -> None:
        ends.append(ended)
        if len(ends) == 2:  # Two processes, of which each has ended one task and is at another.
            nodes.add(node in cluster.list_all_nodes())
            cluster.remove_node(node)

    tasks = [Chore("take a moment", place) for place in range(6)]
    try:
        execute(CHORES, tasks, Workers(2, cluster=cluster.address), on_end)
        assert cluster.head_node in cluster.list_all_nodes()
    finally:
        cluster.shutdown()
    assert nodes == {True}
    assert [ended.error for ended in ends] == [None] * len(tasks)
    assert {ended.task for ended in ends} == set(tasks)


@on_a_cluster
def test_a_cluster_of_which_the_head_is_lost_ends_all_that_had_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What had is kept. Ray itself would end this process, with the exit code of a finding."""
    monkeypatch.setattr(on_ray, "SILENT_SECONDS", 3.0)
    cluster_utils = importlib.import_module("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})

    ends: list[Ended[Chore, Done]] = []

    def on_end(ended: Ended[Chore, Done]) -> None:
        if not ends:
            cluster.head_node.kill_gcs_server()
        ends.append(ended)

    tasks = [Chore("take a moment", place) for place in range(9)]
    try:
        execute(CHORES, tasks, Workers(1, cluster=cluster.address), on_end)
    finally:
        cluster.shutdown()
    assert {ended.task for ended in ends} == set(tasks)
    assert ends[0].error is None
    assert "the Ray cluster no longer answers" in (ends[-1].error or "")


def killed_midway(task: Task) -> Result:
    """Run a task; the first process that does is killed a moment after it began."""
    marker = Path(os.environ["KILLED_MIDWAY"])
    if not marker.exists():
        marker.touch()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return run_in_turn(task)


def hunts() -> list[Task]:
    """Return two hunts that find a bug, and a clean trial."""
    trial = one_size(TrialConfig(device="cpu"))
    trials = (trial.with_bug("swa_pad"), trial.with_bug("req_pool_pad"), trial)
    return [Task(one, Source.GENERATED, 0, 10) for one in trials]


@on_a_cluster
def test_a_campaign_with_a_worker_killed_midway_gives_the_same_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLED_MIDWAY", str(tmp_path / "killed"))
    campaign = Campaign(killed_midway, TASKS.shared, TASKS.seconds)
    disturbed = ends_of(campaign, hunts(), Workers(2, cluster=LOCAL))
    assert (tmp_path / "killed").exists()
    for task, ended in ends_of(TASKS, hunts(), Workers(0)).items():
        found = disturbed[task].result
        assert (found.status, found.finding) == (ended.result.status, ended.result.finding)
