"""Changes are applied to the ledger later, and no finding is lost or comes too late."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paritybit.connectors.failures import report
from paritybit.drive import engine
from paritybit.drive.forks import in_fork
from paritybit.watch import journal, settings
from paritybit.watch.journal import Journal
from paritybit.watch.observations import EngineError
from properties.support.harness.command_line import python
from properties.support.watching import Scene, lines_in

SLOTS = [3, 4, 5, 6]

DOUBLE_FREE = "double free | full | not known"


def free(scene: Scene, source: str, *slots: int) -> None:
    """Free slots of both groups at a line of the engine."""
    for group in ("full", "swa"):
        scene.freed(group, slots, f"{source} in free")


def written(made: Journal) -> list[dict[str, Any]]:
    """Return the findings that were written so far."""
    return [line for line in lines_in(made.path.parent) if line["kind"] == "finding"]


def test_each_call_that_frees_again_is_named_in_order(scene: Scene) -> None:
    scene.forward("a", [1, 2, 3], 0, SLOTS)
    free(scene, "one.py:1", 3, 4, 5)
    free(scene, "two.py:2", 5, 6)
    scene.forward("b", [1], 0, [20])
    free(scene, "three.py:3", 4, 5)
    scene.watcher.allocated("full", torch.tensor([3]))
    free(scene, "four.py:4", 3)
    free(scene, "five.py:5", 3)
    scene.forward("c", [1], 0, [21])
    found = [
        (line["forward"], line["slots"], line["freed"]["source"])
        for line in written(scene.journal)
        if line["group"] == "full"
    ]
    assert found == [
        (1, [5], "pretended/one.py:1"),
        (2, [4, 5], "pretended/one.py:1"),
        (2, [3], "pretended/four.py:4"),
    ]
    of_swa = [line for line in written(scene.journal) if line["group"] == "swa"]
    assert [line["slots"] for line in of_swa] == [[5], [4, 5], [3], [3]]


@pytest.mark.parametrize("fails", [False, True])
def test_an_error_comes_after_the_double_free_before_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The error is judged even if the changes cannot be applied, as after a fault of a GPU."""
    free(scene, "one.py:1", 3)
    free(scene, "two.py:2", 3)
    if fails:
        monkeypatch.setattr(torch.Tensor, "sort", None)
    found = EngineError(0, "the pool", "no")
    report(found, scene.journal, settings.Settings(str(scene.journal.path.parent)))
    checks = [line["check"] for line in written(scene.journal)]
    assert checks == (["engine error"] if fails else ["double free"] * 2 + ["engine error"])


READERS: dict[str, Callable[[Scene], object]] = {
    "the engine fails": lambda _: engine.judge_failure(engine.StalledError("2 requests wait")),
    "the process forks": lambda _: in_fork(lambda: None, 60.0),
}
"""What reads or copies the findings of this process, by its occasion."""


@pytest.mark.parametrize("reader", READERS)
def test_a_double_free_is_written_before_findings_are_read(
    scene: Scene, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_OPEN", [scene.journal])
    folder = str(scene.journal.path.parent)
    monkeypatch.setenv(settings.VARIABLE, settings.Settings(folder).text())
    free(scene, "one.py:1", 3)
    free(scene, "two.py:2", 3)
    assert written(scene.journal) == []
    READERS[reader](scene)
    assert written(scene.journal)[0]["key"] == DOUBLE_FREE


ENDS = {
    "the end of a drive": "from paritybit.drive.run import leave; leave(0)",
    "the end of a journal": "journal.of_process().end(); os._exit(0)",
    "the end of a process": "",
    "the end of a watcher": "del watcher; os._exit(0)",
}

PROGRAM = """
import multiprocessing
import os
import torch
from paritybit.watch import journal
from paritybit.watch.settings import active
from paritybit.watch.watcher import Watcher
from properties.support.watching import groups, lines_in

def free_twice():
    watcher = Watcher(
        groups(), engine="x", release="1", journal=journal.of_process(), settings=active()
    )
    watcher.freed("full", torch.tensor([3]))
    watcher.freed("full", torch.tensor([3]))
    {end}

if __name__ == "__main__":
    {run}
"""

RUNS = {
    "in the process": "free_twice()",
    "in a child": "journal.of_process().count(forwards=0); "
    "one = multiprocessing.get_context('fork').Process(target=free_twice); one.start(); one.join()",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("run", RUNS)
def test_a_double_free_is_not_lost_when_a_process_ends(tmp_path: Path, end: str, run: str) -> None:
    given = settings.Settings(str(tmp_path), ("double free",)).text()
    program = PROGRAM.format(end=ENDS[end], run=RUNS[run])
    done = python("-c", program, variables={settings.VARIABLE: given})
    assert done.returncode == 0, done.stderr
    lines = lines_in(tmp_path)
    found = [line for line in lines if line["kind"] == "finding"]
    assert [line["check"] for line in found] == ["double free"]
